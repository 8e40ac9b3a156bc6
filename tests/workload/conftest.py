"""Helpers of the workload tests: small files, and the folder of published traces where it is at hand."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

SHARED = Path(os.environ.get("KVLAB_SHARED") or Path(__file__).parents[2].parent / "shared")


@pytest.fixture(scope="session")
def traces() -> Path:
    """The published traces; tests that need them are skipped elsewhere."""
    folder = SHARED / "traces"
    if not folder.is_dir():
        pytest.skip(f"no published traces in {folder} (set KVLAB_SHARED to their parent folder)")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes text, bytes or a list of JSON rows to a file and returns its path."""

    def write_file(
        content: str | bytes | Iterable[Mapping[str, Any]], name: str = "trace", packed: bool = False
    ) -> str:
        if not isinstance(content, str | bytes):
            content = "".join(json.dumps(row) + "\n" for row in content)
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if packed else data)
        return str(path)

    return write_file
