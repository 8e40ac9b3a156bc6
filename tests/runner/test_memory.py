"""How much memory a process could still get."""

from pathlib import Path

import pytest

from harness.runner import memory


def test_a_control_group_bounds_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = memory.free_bytes()
    assert alone is None or alone > 0
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() != 2000
