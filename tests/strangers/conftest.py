"""A stranger's file, at a place of its own that is on the path."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Bring = Callable[[str], ModuleType]


@pytest.fixture
def bring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bring:
    """Copies a file of this folder outside, and imports it there."""

    def copied(name: str) -> ModuleType:
        outside = tmp_path / "outside"
        outside.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).with_name(f"{name}.py"), outside)
        monkeypatch.syspath_prepend(str(outside))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return __import__(name)

    return copied
