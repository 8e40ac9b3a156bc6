"""Compiles the Triton kernels for GPUs that are not there and reads the machine code.

`python -m kvlab_kernels.compile_gate`.

Enumerated from the tables that the launchers use, so what is checked is what runs. A build fails the gate when it
spills, uses local memory, exceeds the shared memory of its architecture, or lacks what its speed rests on: 16-byte
accesses, asynchronous copies into shared memory, tensor cores for 16-bit types.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TRITON_INTERPRET"] = "0"  # read when the kernels are imported: interpreted functions cannot be compiled

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvlab_kernels import triton_decode, triton_moves, triton_prefill
from kvlab_kernels.triton_widths import HEAD_DIMS, LATENTS, UNEQUAL, Widths, widths

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
HALVES = (torch.bfloat16, torch.float16)
SHARED_LIMIT = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10}  # bytes per program
POINTERS = {"tables": "*i32", "rows": "*i32", "lengths": "*i32", "query_starts": "*i32", "partial": "*fp32",
            "log_sums": "*fp32", "slots": "*i64", "source_slots": "*i64", "target_slots": "*i64",
            "source": "*i32", "target": "*i32"}  # fmt: skip
POOLS = ("q", "k", "v", "k_pool", "v_pool", "out", "sinks")  # pointers of the build's dtype
SCORES = {"window": "LIMITED", "cap": "CAPPED", "sinks": "SINKS"}
KERNELS = {
    "decode": triton_decode.decode_kernel,
    "reduce": triton_decode.reduce_kernel,
    "prefill": triton_prefill.prefill_kernel,
    "write": triton_moves.write_kernel,
    "copy": triton_moves.copy_kernel,
}


class Build(NamedTuple):
    """One specialization of a kernel, and which of "wide", "async" and "tensor" its machine code must show.

    The kernel goes by its name, so that a build can be sent to another process.
    """

    kernel: str
    label: str
    dtype: torch.dtype
    constants: dict[str, Any]
    options: dict[str, int]
    demands: tuple[str, ...] = ()


class CompileReport(NamedTuple):
    """What the tools say about one build; `wide` and `async_` count 16-byte loads and asynchronous ones among them."""

    registers: int
    spilled: int
    shared: int
    wide: int
    async_: int
    tensor: int
    problems: tuple[str, ...]


def decode_build(group: int, width: Widths | int, dtype: torch.dtype, block_size: int, split: bool = True,
                 scores: str = "") -> Build:  # fmt: skip
    """The decode kernel as `decode_attention` launches it.

    Args:
        width: of heads that are equally wide in K and V, or what else there is.
        scores: what of `SCORES` is done to them, in words.
    """
    shape = _widths(width)
    config = triton_decode.decode_config(group, shape, dtype)
    constants = {
        "GROUP": group, "ROWS": triton_decode.GROUP_ROWS if config.use_dot else 1, **shape.constants,
        "BLOCK_N": config.block_n, "BLOCK_SIZE": block_size, "PAGED": block_size > 0, "USE_DOT": config.use_dot,
        "SPLIT": split, "MIN_TILES": triton_decode.MIN_TILES, "STAGES": config.num_stages, **_flags(scores),
    }  # fmt: skip
    demands = ("wide", "async", "tensor") if config.use_dot and dtype in HALVES else ("wide", "async")
    label = f"G{group} {_label(shape, dtype)} {_placement(block_size)}{'' if split else ' unsplit'} {scores}".rstrip()
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return Build("decode", label, dtype, constants, options, demands)


def reduce_build(width: Widths | int, dtype: torch.dtype, splits: int, scores: str = "") -> Build:
    """The second stage of decode for a number of splits."""
    shape = _widths(width)
    constants = {
        "VALUE_DIM": shape.value, "VALUE_PAD": triton.next_power_of_2(shape.value), "SPLITS_PAD": splits,
        "BLOCK_N": triton_decode.decode_config(4, shape, dtype).block_n, "MIN_TILES": triton_decode.MIN_TILES,
        **_flags(scores),
    }  # fmt: skip
    del constants["CAPPED"]
    label = f"{_label(shape, dtype)} splits {splits} {scores}".rstrip()
    return Build("reduce", label, dtype, constants, {"num_warps": 4}, ("wide",) if splits > 2 else ())


def prefill_build(width: Widths | int, dtype: torch.dtype, block_size: int, scores: str = "") -> Build:
    """The prefill kernel as `prefill_attention` launches it."""
    shape = _widths(width)
    config = triton_prefill.prefill_config(shape, dtype, "window" in scores or "cap" in scores)
    constants = {
        **shape.constants, "BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_SIZE": block_size,
        "PAGED": block_size > 0, "STAGES": config.num_stages, **_flags(scores),
    }  # fmt: skip
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    demands = ("wide", "async", "tensor") if dtype in HALVES else ("wide", "async")
    label = f"{_label(shape, dtype)} {_placement(block_size)} {scores}".rstrip()
    return Build("prefill", label, dtype, constants, options, demands)


def distinct_builds() -> Iterator[Build]:
    """Latents, of which V is the first tile of K, and keys that are wider than values."""
    latents = [found for rank, rope in LATENTS if (found := widths(rank + rope, rank, latent=True))]
    others = [found for pair in UNEQUAL if (found := widths(*pair))]
    sizes = {torch.bfloat16: (0, 16), torch.float32: (16,)}  # extents in one dtype: the addresses know none
    for shape, (dtype, of) in itertools.product([*latents, *others], sizes.items()):
        yield from (decode_build(16, shape, dtype, size) for size in of)
        yield from (prefill_build(shape, dtype, size) for size in of)
    yield from (reduce_build(shape, torch.bfloat16, 64) for shape in latents)


def move_builds() -> Iterator[Build]:
    """The write kernel of each row shape, and the copy kernel with each side listed or dense."""
    latents = tuple(map(sum, LATENTS))
    for head_dim, dtype in itertools.product((*HEAD_DIMS, *latents), (torch.float16, torch.float32)):
        padded = triton.next_power_of_2(head_dim)
        rows = max(1, triton_moves.WRITE_ELEMENTS // padded // dtype.itemsize)
        constants = {"HEAD_DIM": head_dim, "HEAD_PAD": padded, "ROWS": rows, "BOTH": head_dim not in latents}
        label = f"D{head_dim} {TYPES[dtype]}"
        yield Build("write", label, dtype, constants, {"num_warps": 4}, ("wide",))
    for words, (source, target) in itertools.product((128, 512, 2048), ((True, True), (True, False), (False, True))):
        constants = {"SLOTS": triton_moves.COPY_WORDS // words, "WORDS": words, "SOURCE_LISTED": source,
                     "TARGET_LISTED": target}  # fmt: skip
        label = f"{words} words {'list' if source else 'dense'}-{'list' if target else 'dense'}"
        yield Build("copy", label, torch.float32, constants, {"num_warps": 4}, ("wide",))


def builds(scope: str) -> list[Build]:
    """The builds of a scope.

    `full` is the whole product. `default` leaves out what cannot change the machine code's shape: groups 2 and 8
    (only the mask of the 16 rows), fp16 (another spelling of the same instruction) and blocks of 1 and 64 (addressed
    as 16 and 256 are) are built at head_dim 128 alone. `quick` is one build of each kind at the usual head_dims.
    """
    half, full = torch.bfloat16, torch.float32
    if scope == "quick":
        decode = [decode_build(4, d, half, b) for d, b in ((128, 0), (128, 16), (128, 256), (64, 16), (80, 16))]
        decode += [decode_build(1, 128, torch.float16, 16), decode_build(1, 128, full, 16), reduce_build(128, half, 64)]
        decode += [decode_build(4, 128, half, 16, scores="window cap sinks")]
        prefill = [prefill_build(128, half, 16), prefill_build(128, half, 0), prefill_build(128, half, 16, "window")]
        latents = [build for build in distinct_builds() if build.dtype == half and "D512+64 bf16 block" in build.label]
        return [*decode, *prefill, *latents, next(move_builds())]
    dims, sizes = HEAD_DIMS, (0, 1, 16, 64, 256)
    if scope == "full":
        decode = [decode_build(*case) for case in itertools.product((1, 2, 4, 8), dims, TYPES, sizes, (True, False))]
        prefill = [prefill_build(*case) for case in itertools.product(dims, TYPES, sizes)]
    else:
        cases = [*itertools.product((1, 4), dims, (half, full), (0, 16, 256)),
                 *itertools.product((1, 2, 4, 8), (128,), HALVES, (0, 1, 16, 64))]  # fmt: skip
        decode = [decode_build(*case) for case in dict.fromkeys(cases)]
        decode += [decode_build(group, 128, half, size, split=False) for group in (1, 4) for size in (0, 16, 256)]
        prefill = [prefill_build(*case) for case in itertools.product(dims, (half, full), (0, 16, 256))]
        prefill += [prefill_build(128, torch.float16, 16), prefill_build(128, half, 1)]
    reduce = [reduce_build(d, dtype, splits) for d in dims for dtype in (half, full) for splits in (2, 64)]
    for words, dtype, head_dim in itertools.product(
        ("window", "cap", "window sinks", "window cap"), (half, full), dims
    ):
        decode += [decode_build(group, head_dim, dtype, 16, scores=words) for group in (1, 4)]
        prefill += [prefill_build(head_dim, dtype, 16, words)]
    reduce += [reduce_build(d, half, 64, "window sinks") for d in dims]
    return [*decode, *reduce, *prefill, *distinct_builds(), *move_builds()]


def inspect(build: Build, arch: int) -> CompileReport:
    """Compiles one build for `sm_<arch>` and reads registers, spills and instructions from the binary."""
    kernel = KERNELS[build.kernel]
    signature, aligned = {}, {}
    for index, parameter in enumerate(kernel.params):
        name = parameter.name
        pointer = f"*{TYPES[build.dtype]}" if name in POOLS else POINTERS.get(name)
        signature[name] = pointer or ("fp32" if name in ("scale", "cap") else "i32")
        if name in build.constants:
            signature[name] = "constexpr"
        elif pointer or "_stride_" in name:  # what the launcher finds divisible by 16 in every real call
            aligned[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, build.constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=build.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("nvdisasm", "-c", file.name)
    spilled = sum(int(size) for size in re.findall(r"\b(?:STACK|LOCAL):(\d+)", usage))
    spilled += len(re.findall(r"\b(?:LDL|STL)\b", code))
    registers = max(int(count) for count in re.findall(r"\bREG:(\d+)", usage))
    async_ = len(re.findall(r"\bLDGSTS\S*\.128\b", code))
    wide = async_ + len(re.findall(r"\bLDG\S*\.128\b", code.replace("LDGSTS", "")))
    tensor = len(re.findall(r"\bH?G?MMA\.", code))
    shared = compiled.metadata.shared
    problems = [
        ("spills", spilled > 0),
        ("no 16-byte loads", "wide" in build.demands and wide == 0),
        ("no asynchronous copies", "async" in build.demands and async_ == 0),
        ("no tensor cores", "tensor" in build.demands and tensor == 0),
        ("too much shared memory", shared > SHARED_LIMIT.get(arch, 99 << 10)),
    ]
    return CompileReport(registers, spilled, shared, wide, async_, tensor, tuple(text for text, bad in problems if bad))


def main(arguments: list[str] | None = None) -> int:
    """Prints one line per build and architecture; returns the number of builds that fail the gate (at most 1)."""
    parser = argparse.ArgumentParser(prog="python -m kvlab_kernels.compile_gate", description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", default=None, help="compute capabilities (default: 80 90)")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument("--quick", action="store_const", const="quick", dest="scope", help="one build of each kind")
    scope.add_argument("--full", action="store_const", const="full", dest="scope", help="the whole product")
    options = parser.parse_args(arguments)
    jobs = [(build, arch) for arch in options.arch or (80, 90) for build in builds(options.scope or "default")]
    failed = 0
    line = "{:>3} {:<7} {:<28} {:>4} {:>5} {:>7} {:>4} {:>5} {:>6} {}"
    print(line.format("sm", "kernel", "build", "regs", "spill", "shared", "16 B", "async", "tensor", "problems"))
    with ProcessPoolExecutor(options.jobs) as pool:
        for (build, arch), found in zip(jobs, pool.map(_inspect_named, jobs), strict=True):
            failed += bool(found.problems)
            *numbers, problems = found
            print(line.format(arch, build.kernel, build.label, *numbers, ", ".join(problems)), flush=True)
    print(f"{len(jobs)} builds, {failed} failed")
    return int(failed > 0)


def _inspect_named(job: tuple[Build, int]) -> CompileReport:
    return inspect(*job)


def _flags(scores: str) -> dict[str, bool]:
    """What is done to scores beyond the softmax: a word of each of `SCORES`."""
    return {flag: word in scores.split() for word, flag in SCORES.items()}


def _widths(width: Widths | int) -> Widths:
    """Of heads that are equally wide in K and V, where only that is given."""
    found = width if isinstance(width, Widths) else widths(width, width)
    if found is None:
        raise ValueError(f"no kernel is made for heads of {width}")
    return found


def _label(shape: Widths, dtype: torch.dtype) -> str:
    rest = f"+{shape.rest}" if shape.rest else ""
    return f"D{shape.head}{rest}{'' if shape.latent or not rest else f' V{shape.value}'} {TYPES[dtype]}"


def _placement(block_size: int) -> str:
    return f"block {block_size}" if block_size else "extent"


def _tool(name: str, *arguments: str) -> str:
    """Output of one of the CUDA tools that Triton brings along."""
    return subprocess.run([TOOLS / name, *arguments], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
