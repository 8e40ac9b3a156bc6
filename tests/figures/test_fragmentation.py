"""What each strategy against fragmentation costs, in the two textbook cases."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.report.figures.fragmentation import costs
from harness.report.sweep import Sweep
from harness.tasks.claims import composed

SYSTEMS = {
    "first_fit+exact": "wait", "first_fit_compacting+exact": "move", "first_fit_growing+on_demand": "copy",
    "contiguous+max_model_len": "reserve", "rebuild+first_fit+exact": "rebuild", "paged+on_demand": "page",
    "vattention": "page",
}  # fmt: skip


@pytest.fixture(scope="module", params=["holes", "blocks"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder: Path = tmp_path_factory.mktemp(request.param)
    for system in SYSTEMS:
        overrides = ["experiment=fragmentation", f"case={request.param}", f"system={system}", "debug=true"]
        row = run_job(composed(overrides), folder / system, overrides)
        assert row["status"] == "finished", row["error"]
    sweep = Sweep.read(folder)
    jobs = [dirs[0] for dirs in sweep.done["dirs"]]
    table = costs(sweep)
    return table.assign(job=jobs).set_index("job")


def test_each_system_is_named_after_what_it_does(told: pd.DataFrame) -> None:
    assert told["strategy"].to_dict() == SYSTEMS


def test_only_who_needs_a_hole_or_a_lane_waits(told: pd.DataFrame) -> None:
    waits, quick = told["longest_wait_s"], ["first_fit_compacting+exact", "rebuild+first_fit+exact", "paged+on_demand"]
    assert waits[["first_fit+exact", "contiguous+max_model_len"]].min() > 2
    assert waits[[*quick, "vattention"]].max() < 0.05
    assert (told["makespan_s"] <= told.loc["contiguous+max_model_len", "makespan_s"]).all()


def test_compaction_copies_what_a_rebuild_computes_again(told: pd.DataFrame) -> None:
    """But for the token that the middle sequence gains until the step in which all start over."""
    moved, rebuilt = told.loc["first_fit_compacting+exact"], told.loc["rebuild+first_fit+exact"]
    assert rebuilt["recomputed_tokens"] == moved["copied_slots"] + 1
    assert rebuilt["copied_slots"] == moved["recomputed_tokens"] == 0


def test_only_moving_and_copying_copy_slots(told: pd.DataFrame) -> None:
    copied = told["copied_slots"] > 0
    assert sorted(copied.index[copied]) == ["first_fit_compacting+exact", "first_fit_growing+on_demand"]


def test_what_reserves_most_wastes_most(told: pd.DataFrame) -> None:
    assert told["wasted_pct"].idxmax() == "contiguous+max_model_len"
    assert told.loc["paged+on_demand", "wasted_pct"] < 5
