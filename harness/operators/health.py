"""Plausibility of a table: points faster than the GPU's peak, keys that disagree, holes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from harness.errors import HarnessError
from harness.operators.folder import Gpu, read_gpu, read_table, versions

TOO_FAST = 0.95  # of the roofline: clocks and peaks are not known more precisely
REFUSED = 0.05  # share of checked points that may be too fast; a table with more is refused
IN_CACHE = 256e6  # bytes that a GPU may keep in its caches from one timed run to the next
NO_KEYS = ("framework", "version", "device", "op_name", "kernel_source", "latency", "model", "architecture",
           "beam_width", "model_name")  # fmt: skip
SIZES = {"bfloat16": 2, "fp8": 1}


class Health(NamedTuple):
    """Plausibility of a table.

    Attributes:
        too_fast: points faster than the roofline, of `checked`.
        doubled, apart: keys with several rows (kernels), and the largest ratio of the slowest to the fastest of them.
    """

    rows: int
    checked: int
    too_fast: int
    doubled: int
    apart: float
    kernels: int

    @property
    def refused(self) -> bool:
        return self.checked > 0 and self.too_fast > REFUSED * self.checked


def roofline_ns(name: str, frame: pd.DataFrame, gpu: Gpu) -> np.ndarray:
    """``[rows]``: the least possible time of each; 0 if there is no roofline for it, or its bytes may be cached."""
    least = np.zeros(len(frame))
    if name == "gemm_perf":
        for dtype in frame["gemm_dtype"].unique():
            at = (frame["gemm_dtype"] == dtype).to_numpy()
            one = frame[at]
            least[at] = 2.0 * one["m"] * one["n"] * one["k"] / gpu.flops(dtype)
        return least
    if name not in ("context_attention_perf", "generation_attention_perf"):
        return least
    narrow = (frame["kv_cache_dtype"] == "fp8").to_numpy() | (frame["attn_dtype"] == "fp8").to_numpy()
    width = frame.get("head_dim", 128)
    window = frame["window_size"].to_numpy() if "window_size" in frame else np.zeros(len(frame))
    if name == "context_attention_perf":
        length = frame["isl"].to_numpy(float)
        seen = np.where((window > 0) & (window < length), window * (length - window / 2), length**2 / 2)
        flops = 4.0 * frame["batch_size"] * seen * frame["num_heads"] * width
        return np.asarray(flops / np.where(narrow, gpu.flops("fp8"), gpu.flops("bfloat16")))
    context = frame["step"].to_numpy(float) + 1
    seen = np.where(window > 0, np.minimum(window, context), context)
    moved = frame["batch_size"] * seen * frame["num_key_value_heads"] * 2.0 * width * np.where(narrow, 1, 2)
    return np.where(moved > IN_CACHE, moved / gpu.bytes_per_ns, 0.0)


def too_fast(name: str, frame: pd.DataFrame, gpu: Gpu) -> tuple[np.ndarray, int]:
    """(which rows are faster than possible, how many could be checked)."""
    least = roofline_ns(name, frame, gpu)
    return frame["latency"].to_numpy() * 1e6 < TOO_FAST * least, int((least > 0).sum())


def health(name: str, frame: pd.DataFrame, gpu: Gpu) -> Health:
    """Check one table."""
    fast, checked = too_fast(name, frame, gpu)
    keys = [column for column in frame.columns if column not in NO_KEYS]
    keys += ["op_name"] if "op_name" in frame and frame["op_name"].nunique() > 1 else []
    if "gdn" in name or "mamba" in name:  # several kernels follow each other there
        keys.append("kernel_source")
    spread = frame.groupby(keys, dropna=False)["latency"].agg(["min", "max", "size"])
    doubled = spread[spread["size"] > 1]
    kernels = int(frame["kernel_source"].nunique()) if "kernel_source" in frame else 1
    return Health(len(frame), checked, int(fast.sum()), len(doubled),
                  float((doubled["max"] / doubled["min"]).max()) if len(doubled) else 1.0, kernels)  # fmt: skip


def tables_below(folder: Path) -> Iterator[tuple[str, str, str, str, Health | HarnessError]]:
    """(GPU, engine, version, table, its health, or why it can't be read) of every table of a folder.

    Raises:
        HarnessError: there is none.
    """
    found = False
    for place in sorted((folder / "gpus").glob("*.yaml")):
        gpu = read_gpu(folder, place.stem)
        for engine in sorted(one.name for one in (folder / place.stem).glob("*") if one.is_dir()):
            for version in versions(folder / place.stem / engine):
                for path in sorted((folder / place.stem / engine / version).glob("*.parquet")):
                    found = True
                    try:
                        told: Health | HarnessError = _health_of(path, gpu)
                    except HarnessError as error:
                        told = error
                    yield place.stem, engine, version, path.stem, told
    if not found:
        raise HarnessError(f"{folder} has no operator tables: gpus/GPU.yaml and GPU/ENGINE/VERSION/TABLE.parquet, as "
                           "the package aiconfigurator-core unpacks to")  # fmt: skip


def _health_of(path: Path, gpu: Gpu) -> Health:
    frame = pd.read_parquet(path) if path.stem.startswith("wideep") else read_table(path)
    if "latency" not in frame:
        return Health(len(frame), 0, 0, 0, 1.0, 1)
    return health(path.stem, frame, gpu)


def print_health(folder: str) -> None:
    """`python -m harness tables DIR`."""
    from rich.console import Console
    from rich.table import Table

    view = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title=f"Operator tables of {folder}",
                 title_justify="left")  # fmt: skip
    for i, header in enumerate(("GPU", "engine", "table", "rows", "kernels", "keys twice", "apart", "checked",
                                "too fast", "")):  # fmt: skip
        view.add_column(header, justify="left" if i < 3 or i == 9 else "right", no_wrap=i < 3)
    refused, broken = 0, []
    for gpu, engine, version, name, one in tables_below(Path(folder)):
        if isinstance(one, HarnessError):
            refused += 1
            broken.append(str(one))
            view.add_row(gpu, f"{engine} {version}", name, *[""] * 6, "can't be read")
            continue
        refused += one.refused
        said = "refused" if one.refused else "points dropped" if one.too_fast else ""
        view.add_row(gpu, f"{engine} {version}", name, f"{one.rows:,}", str(one.kernels), f"{one.doubled:,}",
                     f"{one.apart:.1f}x" if one.doubled else "", f"{one.checked:,}",
                     f"{100 * one.too_fast / one.checked:.1f} %" if one.checked else "", said)  # fmt: skip
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    console.print(view)
    for line in broken:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{refused} refused: more than {REFUSED:.0%} of what could be checked is faster than the GPU's peaks "
                  "allow, or it can't be read. Where keys are there twice, the engine's own kernel is taken, else the "
                  "median.")  # fmt: skip
