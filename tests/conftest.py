"""Set-up that must come before any test module imports triton."""

import os
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir", action="append", type=Path, metavar="DIR",
        help="replay the engine's step traces (*.jsonl) in DIR and below instead of those of tests/golden",
    )  # fmt: skip
