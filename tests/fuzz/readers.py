"""Every file that a user hands in, mutated: what is read is right, or the one declared error says what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import resource
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import harness.__main__  # noqa: F401  (its resolvers)
from harness.errors import HarnessError
from harness.metrics.recorder import Recorder
from harness.runner.latency.roofline import Roofline
from harness.runner.latency.table import TableLatency
from harness.runner.latency.table_files import read_meta
from harness.runner.simulated_device import SimulatedDevice
from harness.tasks.claims import composed
from harness.validate.engine import read_engine
from harness.validate.measured import read_measured
from harness.validate.prompts import find_prompts
from harness.workload import build_workload
from harness.workload.inspect import inspect_file
from harness.workload.readers import Trace, read_trace
from harness.workload.readers.trace import Reading
from schedulers.request import Batch, Sequence
from tests.latency.models import TINY
from tests.validate.made_up import write_profile, write_run

from .mutate import mutated
from .play import in_time

SHARED = Path(os.environ.get("KVLAB_SHARED") or Path(__file__).parents[2].parent / "shared")
LINES = 40  # of each real file
MEMORY = 6 << 30  # bytes of address space beside what is taken: a wrong number must not ask for more
SMALL = {
    "own.jsonl": '{"arrival_s": 0.0, "prompt_len": 5, "output_len": 3, "n": 2}\n{"arrival_s": 0.5, "prompt_len": 7, '
    '"output_len": 2, "session": "a"}\n{"arrival_s": 2.25, "prompt_len": 70, "output_len": 20}\n',
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:51.2240000,879,55\n",
    "plain.csv": "arrival_time,input_len,output_len\n0,10,20\n0.5,30,40\n1.5,5,60\n",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 3000, "input_length": 500, "output_length": 26, "hash_ids": [46]}\n',
    "messages.jsonl": '{"messages": [{"role": "user", "content": "one"}, {"role": "assistant", "content": "b"}]}\n'
    '{"messages": [{"role": "user", "content": "another"}, {"role": "assistant", "content": "an answer of words"}]}\n',
    "sharegpt.json": '[{"id": "1", "conversations": [{"from": "human", "value": "hello there"}, {"from": "gpt", "va'
    'lue": "well, hello"}]}, {"id": "2", "conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value'
    '": "y"}]}]',
}  # fmt: skip


@dataclass(frozen=True)
class Original:
    """Files that are read together, by name; the first one is handed over, any may be damaged."""

    kind: str
    name: str
    files: dict[str, bytes]
    read: Callable[[Path], Any]


def originals() -> list[Original]:
    """All there are: those of the shared folder too, where it is at hand."""
    found = [Original("trace", name, {name: text.encode()}, read_any) for name, text in SMALL.items()]
    for folder in ("traces", "faults_small", "faults_small/formats"):
        for path in sorted((SHARED / folder).glob("*.*")):
            if path.suffix in (".csv", ".jsonl", ".json", ".gz") and "vllm_measured" not in path.name:
                files = {path.name.removesuffix(".gz"): _head(path)}
                found.append(Original("trace", path.name, files, read_any))
    return found + list(_beside())


def _head(path: Path) -> bytes:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data if ".json" in path.name and ".jsonl" not in path.name else b"\n".join(data.split(b"\n")[:LINES]) + b"\n"


def _beside() -> Iterator[Original]:
    """Files of a measured run, of kernel tables, machines, step times and models."""
    from harness.runner.latency import choose, hardware

    with tempfile.TemporaryDirectory() as place:
        run = write_run(Path(place) / "run")
        profile = write_profile(Path(place) / "profile")
        files = {path.name: path.read_bytes() for path in (run, *run.parent.glob("*.meta.json"))}
        prompts = [{"request_id": name, "input_length": size, "block_size": 4, "hash_ids": list(range(size // 4))}
                   for name, size in (("a", 16), ("b", 32))]  # fmt: skip
        files["prompts.jsonl"] = "".join(json.dumps(row) + "\n" for row in prompts).encode()
        files["run.timeseries.csv"] = b"t,running,waiting\n0,1,0\n1,2,0\n"
        yield Original("measured run", "made up", files, read_run)
        tables = {path.name: path.read_bytes() for path in sorted(profile.iterdir())}
        yield Original("kernel tables", "made up", tables, read_tables)
    for path in sorted((SHARED / "traces").glob("vllm_measured_*8B.jsonl.gz")):
        stem = path.name.removesuffix(".jsonl.gz")
        names = (path.name, f"{stem}.meta.json.gz", f"{stem}.timeseries.csv.gz")
        files = {name.removesuffix(".gz"): _head(path.with_name(name)) for name in names}
        yield Original("measured run", stem, files, read_run)
    for path in sorted(SHARED.glob("profiles/*/*")):
        tables = {one.name.removesuffix(".gz"): _table(one) for one in path.iterdir() if one.suffix in (".gz", ".yaml")}
        yield Original("kernel tables", f"{path.parent.name}/{path.name}", tables, read_tables)
    for path in sorted(Path(hardware.__file__).parent.glob("*.yaml"))[:2]:
        yield Original("machine", path.name, {"machine.yaml": path.read_bytes()}, read_machine)
    for path in sorted(choose.PRESETS.glob("*.yaml"))[:2]:
        yield Original("step times", path.name, {"latency.yaml": path.read_bytes()}, read_latency)
    yield Original("step times", "steps.csv", {"steps.csv": _steps()}, read_latency)
    yield Original("model", "tiny", {"config.json": json.dumps(TINY).encode()}, read_model)


def _table(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _steps() -> bytes:
    from harness.runner.latency.fitted import FittedLatency
    from schedulers.continuous import Continuous
    from schedulers.request import Request
    from schedulers.reservation import on_demand
    from tests.conformance.play import play

    with tempfile.TemporaryDirectory() as place:
        recorder = Recorder(Path(place) / "steps.csv")
        from allocators.paged import Paged

        scheduler = Continuous(Paged(400, 64), on_demand, max_model_len=64)
        play([Request(i, 1000 * i, 5 + i, 9) for i in range(9)], scheduler,
             FittedLatency((1e6, 2e4, 9e3, 1e2, 3.0, 1.0)), recorder=recorder)  # fmt: skip
        recorder.steps.flush()
        return (Path(place) / "steps.csv").read_bytes()


# ---- reading -------------------------------------------------------------------------------------------------------


def read_any(path: Path) -> Trace:
    """A trace in every way that it is read."""
    inspecting: Any = None
    try:
        inspect_file(path, Console(file=io.StringIO(), width=100))
    except HarnessError as error:
        inspecting = error
    workload = {"path": str(path), "invalid": "drop", "fit": "clip"}
    try:
        requests = build_workload(workload, 2048, 0).requests
    except HarnessError as error:
        if inspecting is None and "max_model_len" not in str(error):
            raise AssertionError(f"inspect reads what a run refuses: {error}") from None
    else:
        assert inspecting is None, f"a run reads what inspect refuses: {inspecting}"
        assert all(0 <= one.arrival_ns <= other.arrival_ns for one, other in pairwise(requests))
        assert all(request.prompt_len + request.output_len <= 2048 for request in requests)
    trace = read_trace(path, Reading())
    sound(trace)
    return trace


def sound(trace: Trace) -> None:
    """What holds of whatever was read."""
    rows = trace.rows
    assert len(rows) > 0, "nothing was read, and nobody says so"
    assert rows.prompt_len.min() >= 1, "a prompt without a token"
    assert rows.output_len.min() >= 1, "an answer without a token"
    if rows.arrival_ns is not None:
        assert rows.arrival_ns[0] >= 0, "an arrival before the start"
        assert (np.diff(rows.arrival_ns) >= 0).all(), "arrivals are not in order"


def read_run(path: Path) -> Any:
    measured = read_measured(path)
    engine = read_engine(path, {}, {})
    find_prompts(measured, "auto")
    requests = measured.requests()
    assert all(request.arrival_ns >= 0 for request in requests), "an arrival before the start"
    return engine["max_num_seqs"], len(requests)


def read_tables(path: Path) -> Any:
    table = TableLatency.load(path.parent, layers=2)
    read_meta(path.parent)
    assert table.step_ns(_decode()) >= 0, "a step that takes less than nothing"
    return table.kernels


@cache
def _cfg() -> Any:
    return composed(["device=simulated"])


def read_machine(path: Path) -> Any:
    cfg = _cfg().copy()
    cfg.device.hardware = str(path)
    return Roofline(SimulatedDevice(cfg).machine("it"), TINY).step_ns(_decode())


def read_latency(path: Path) -> Any:
    cfg = _cfg().copy()
    cfg.device.latency = str(path)
    return SimulatedDevice(cfg).latency.step_ns(_decode())


def read_model(path: Path) -> Any:
    cfg = _cfg().copy()
    cfg.model = {"path": None, "config": str(path)}
    layout = SimulatedDevice(cfg).layout
    assert layout.token_bytes + layout.state_bytes > 0, "a model that keeps nothing"
    return layout


def _decode() -> Batch:
    return Batch([Sequence("one", stored=9, num_tokens=9)], [1])


@cache
def _rows_of(data: bytes, name: str) -> Counter[tuple[int, int]]:
    """(prompt, output) of each row of a trace that is sound."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / name
        path.write_bytes(data)
        return _lengths(read_trace(path))


def _lengths(trace: Trace) -> Counter[tuple[int, int]]:
    return Counter(zip(trace.rows.prompt_len.tolist(), trace.rows.output_len.tolist(), strict=True))


def costs_its_own_row_only(before: bytes, after: bytes, name: str, trace: Trace) -> None:
    """A line that was changed changes its own row: all others are read as they were.

    Where each row is one of several recorded answers (castillo), the draws go by the row's number.
    """
    one, other = before.split(b"\n"), after.split(b"\n")
    changed = [at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right]
    if (
        trace.layout.name.startswith("castillo")
        or len(one) != len(other)
        or changed != [at for at in changed[:1] if at > 0]
    ):
        return
    try:
        right = _rows_of(before, name)
    except HarnessError:
        return  # a file that is refused as it is
    if right.total() not in (len(one) - 1, len(one) - 2):  # rows are no lines
        return
    found = _lengths(trace)
    lost, new = (right - found).total(), (found - right).total()
    assert lost <= 1, f"one line was changed, and {lost} rows are other ones"
    assert new <= 1, f"one line was changed, and {new} rows are new"


# ---- the fuzz ------------------------------------------------------------------------------------------------------


def run(seconds: float, seed: int, out: Path | None) -> int:
    """Mutate for so long; prints a line for each kind of fault, and gives the exit code."""
    from .__main__ import add

    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, hard))
    counts, found, begun, number = Counter[tuple[str, str, str]](), dict[str, str](), time.monotonic(), 0
    several = originals()
    while time.monotonic() < begun + seconds:
        one = several[number % len(several)]
        outcome, said, trace = examine(one, seed, number)
        counts["reader", one.kind, outcome] += 1
        counts["file", one.name, outcome] += 1
        if outcome == "failed" and said not in found:
            found[said] = f"{one.name}, number {number} of seed {seed}"
            print(f"{found[said]}: {said}\n{trace}", flush=True)
        number += 1
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    told = Counter(outcome for (what, _, outcome), times in counts.items() if what == "reader" for _ in range(times))
    print(f"{number} mutated files of seed {seed} in {seconds:.0f} s: {dict(told)}; {len(found)} kinds of fault")
    if out:
        add(out, counts)
    return 1 if found else 0


def examine(one: Original, seed: int, number: int) -> tuple[str, str, str]:
    """(read, refused or failed; what was said; where) of an original mutated."""
    r, first = random.Random(f"{seed} {number}"), next(iter(one.files))
    with tempfile.TemporaryDirectory() as place:
        damaged = r.choice(sorted(one.files))
        for name, data in one.files.items():
            changed = mutated(r, data) if name == damaged else data
            (Path(place) / name).write_bytes(changed)
        try:
            with in_time():
                result = one.read(Path(place) / first)
                if isinstance(result, Trace):
                    costs_its_own_row_only(one.files[first], (Path(place) / first).read_bytes(), first, result)
        except HarnessError as error:
            if str(error).strip() and len(str(error)) < 3000:
                return "refused", str(error), ""
            return "failed", f"an error that says too little or too much: {str(error)[:200]!r}", ""
        except Exception as error:
            ours = [
                frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename
            ]
            where = f"{type(error).__name__} ({Path(ours[-1].filename).name}, {ours[-1].name})"
            what = str(error) if isinstance(error, AssertionError) else ""
            return "failed", f"{where} {what}".strip(), f"{''.join(traceback.format_list(ours[-3:]))}{error}\n"
    return "read", "", ""
