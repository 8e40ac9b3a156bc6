"""How much memory a process could still get."""

from pathlib import Path

import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.errors import HarnessError
from harness.runner import memory
from harness.tasks.claims import composed


def test_a_control_group_bounds_what_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = memory.free_bytes()
    assert alone is None or alone > 0
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert memory.free_bytes() == 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_bytes() != 2000


def test_what_does_not_fit_is_told_with_the_name_that_tables_have() -> None:
    cfg = composed(["model.config.hidden_size=512", "kv_slots=1000000"])
    memory.check_memory(cfg, 4, lambda: None, False)
    with pytest.raises(HarnessError, match=r"^the weights of model opt_mini \[hidden_size=512\] take .* slots"):
        memory.check_memory(cfg, 4, lambda: 1000, False)
