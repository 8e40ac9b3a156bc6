"""Set-up that must come before any test module imports triton."""

import os
from pathlib import Path

import pytest
import torch

from harness import compiled

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
if "PYTEST_XDIST_WORKER" in os.environ:  # a core each
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ.get("KVLAB_COMPILED") == "1":  # the benchmarks, say, of what `python -m harness compile` has built
    compiled.use()
    assert compiled.in_use(), "nothing is built from the sources as they are"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir", action="append", type=Path, metavar="DIR",
        help="replay the engine's step traces (*.jsonl) in DIR and below instead of those of tests/golden",
    )  # fmt: skip
    parser.addoption(
        "--geometry-dir", action="append", type=Path, metavar="DIR",
        help="check the engine's pool geometries (*.json, grouping_cases.jsonl) in DIR, not those of tests/geometry",
    )  # fmt: skip
