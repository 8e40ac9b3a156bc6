"""An allocator for windows, written with only `allocators/base.py` at hand and kept outside: right in every step."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from allocators.base import Allocator, KVLayout
from allocators.checker import Checked
from allocators.layout import LayerGroup
from harness.job import run_job
from harness.tasks.claims import composed
from tests.conformance.allocator import AllocatorConformance, churn

HERE = Path(__file__).parent
KINDS = "sliding_attention,sliding_attention,sliding_attention,full_attention"
MODEL = ["model=llama_mini", "+model.config.sliding_window=64", f"+model.config.layer_types=[{KINDS}]"]
RUN = ["device=simulated", "device.latency=roofline", "device.hardware=l4", "workload.num_requests=40",
       "max_model_len=1024", "kv_slots=4000", *MODEL]  # fmt: skip
MINE = ["allocator._target_=two_page_sizes.TwoPageSizes", "+allocator.share=0.4"]


def copied(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's module at a place of its own, which is on the path."""
    (folder / "outside").mkdir()
    shutil.copy(HERE / f"{name}.py", folder / "outside")
    monkeypatch.syspath_prepend(str(folder / "outside"))
    monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copied("two_page_sizes", tmp_path, monkeypatch)
    return tmp_path


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    row = run_job(composed([*RUN, *overrides]), folder, [*RUN, *overrides])
    assert row["status"] == "finished", row["error"]
    return row


@pytest.mark.parametrize("scheduler", [pytest.param("continuous", marks=pytest.mark.slow), "vllm_v1"])
def test_it_is_right_with_jumps_and_with_exact_steps(outside: Path, scheduler: str) -> None:
    names = {"jumps": (), "exact": ("simulation.exact_steps=true",), "checked": ("debug=true",)}
    for name, keys in names.items():  # the checker recounts slot by slot, so few requests
        run(outside / name, f"scheduler={scheduler}", *MINE, *keys, "workload.num_requests=6")
    for table in ("requests.csv", "steps.csv"):
        found = {(outside / name / table).read_bytes() for name in names}
        assert len(found) == 1


def test_what_lies_behind_the_window_is_given_back_and_makes_room_for_others(outside: Path) -> None:
    all_kept, mine = run(outside / "paged"), run(outside / "mine", *MINE)
    assert all_kept["saturated_kv_out_of_window_pct"] > 30 > 5 > mine["saturated_kv_out_of_window_pct"]
    assert mine["saturated_mean_batch_size"] > 1.2 * all_kept["saturated_mean_batch_size"]
    steps = pd.read_csv(outside / "mine" / "steps.csv")
    books = ["used", "finished_held", "reserved", "over_reserved", "rounding", "cached", "fragmented", "short", "free",
             "out_of_window", "padding", "state"]  # fmt: skip
    assert set(steps[books].sum(axis=1)) == {4000 * 4 * 512}
    assert (steps["used"] == steps["used.full"] + steps["used.window_64"]).all()


class TestConforms(AllocatorConformance):
    capacity, max_model_len = 4000, 48

    def make(self, capacity: int, max_model_len: int) -> Allocator:
        from tests.strangers.two_page_sizes import TwoPageSizes

        return TwoPageSizes(capacity, max_model_len, LAYOUT, large=8, small=4, share=0.6)


LAYOUT = KVLayout((LayerGroup("window", (0, 1, 2), 1, 1, 1, 1, reach=10), LayerGroup("full", (3,), 1, 1, 1, 1)))


def test_a_thousand_calls_are_checked() -> None:
    allocator = Checked(TestConforms().make(2000, 48))
    for seq in churn(allocator, 0, calls=300).live:
        allocator.free(seq)
    assert allocator.memory().free == 2000
