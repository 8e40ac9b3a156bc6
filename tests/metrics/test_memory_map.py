"""The memory map beside the books and the spans that the allocators tell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.job import run_job
from harness.metrics import memory_map
from harness.metrics.memory_map import FILE, KINDS, MapSnapshot, runs_of
from harness.tasks.claims import composed

SMALL = ["device=simulated", "workload=uniform", "workload.num_requests=12", "workload.prompt.low=4",
         "workload.prompt.high=60", "workload.output.low=2", "workload.output.high=20", "max_model_len=96",
         "kv_slots=400", "memory_map=true", "simulation.exact_steps=true"]  # fmt: skip
SYSTEMS = ["vllm", "orca_pow2", "static+contiguous+max_model_len", "first_fit_compacting+exact", "vattention", "radix"]


def job(folder: Path, *overrides: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(memory map, steps) of a run."""
    row = run_job(composed([*SMALL, *overrides]), folder, [])
    assert row["status"] == "finished", row["error"]
    return pd.read_parquet(folder / FILE), pd.read_csv(folder / "steps.csv")


@pytest.mark.parametrize("system", SYSTEMS)
def test_kinds_of_slots_sum_to_the_books_at_every_moment(tmp_path: Path, system: str) -> None:
    runs, steps = job(tmp_path, f"system={system}")
    steps = steps[steps["num_seqs"] > 0].set_index("start_s")
    mapped = runs.pivot_table(index="start_s", columns="kind", values="slots", aggfunc="sum", observed=False).fillna(0)
    assert len(mapped) == len(steps)
    for kind in KINDS[:9]:
        assert (mapped[kind] == steps[kind]).all(), kind


LAYERS = {
    "windows in equal pages": ["model=gemma3_mini", "allocator=vllm_hybrid"],
    "layout ignored": ["model=gemma3_mini", "allocator=paged"],
    "large pages": ["model=gptoss_mini", "allocator=jenga"],
    "states": ["model=qwen3next_mini", "allocator=vllm_hybrid"],
    "states beside slots": ["model=qwen3next_mini", "allocator=paged"],
    "rings": ["model=gemma3_mini", "allocator=split", "allocator.placement=buddy", "reservation=exact",
              "allocator.piece_tokens=96"],
    "rings of page groups": ["model=gemma3_mini", "allocator=split", "allocator.placement=virtual",
                             "allocator.page_bytes=2048", "allocator.piece_tokens=96"],
}  # fmt: skip


@pytest.mark.parametrize("system", LAYERS)
def test_kinds_of_units_sum_to_the_books_of_a_layout(tmp_path: Path, system: str) -> None:
    """What no layer reads again, what pads pages and states, too."""
    runs, steps = job(tmp_path, "device.latency=roofline", "device.hardware=h100", *LAYERS[system],
                      "scheduler=continuous", "scheduler.max_num_batched_tokens=96", "scheduler.max_num_seqs=6",
                      "workload.prompt.high=90", "max_model_len=160", "kv_slots=1600")  # fmt: skip
    steps = steps[steps["num_seqs"] > 0].set_index("start_s")
    mapped = runs.pivot_table(index="start_s", columns="kind", values="slots", aggfunc="sum", observed=False).fillna(0)
    assert len(mapped) == len(steps)
    for kind in KINDS:
        assert (mapped[kind] == steps[kind]).all(), kind
    here = runs[runs["first"] >= 0].sort_values(["start_s", "first"])
    for _, moment in here.groupby("start_s"):
        assert (moment["first"].iloc[1:].to_numpy() >= (moment["first"] + moment["slots"]).iloc[:-1].to_numpy()).all()
        assert (moment["first"] + moment["slots"]).max() <= steps.iloc[0][[k for k in KINDS if k in steps]].sum()


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_slot_is_told_twice_where_nothing_is_shared(tmp_path: Path, system: str) -> None:
    runs, _ = job(tmp_path, f"system={system}")
    for _, moment in runs[runs["first"] >= 0].sort_values("first").groupby("start_s"):
        first, slots = moment["first"].to_numpy(), moment["slots"].to_numpy()
        assert (first[1:] >= (first + slots)[:-1]).all()


def test_a_long_replay_is_sampled_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_map, "SNAPSHOTS", 20)
    runs, steps = job(tmp_path, "memory_map=auto", "workload.num_requests=200")
    times = np.sort(runs["start_s"].unique())
    assert 20 <= len(times) <= 40 < len(steps)
    assert np.diff(times).max() < 0.2 * steps["start_s"].max()
    assert times[-1] > 0.9 * steps["start_s"].max()


def test_preemptions_are_told_and_where_they_end(tmp_path: Path) -> None:
    job(tmp_path, "system=vllm", "workload.num_requests=30", "kv_slots=256")
    events = pd.read_csv(tmp_path / "events.csv")
    requests = pd.read_csv(tmp_path / "requests.csv")
    gone = events[events["event"] == "preempted"]
    assert len(gone) == requests["preemptions"].sum() > 0
    assert (
        gone["request"].value_counts().to_dict()
        == requests[requests["preemptions"] > 0].set_index("id")["preemptions"].to_dict()
    )
    assert (events["event"] == "resumed").sum() == len(gone)


def test_runs_of_blocks_that_follow_one_another_are_one() -> None:
    facts = np.array([[7, 16, 9, 12, 0, 0]])
    moment = MapSnapshot(0, facts, np.array([[1, 2, 5, 4]], dtype=np.int32), [(0, 4)], ("free", 12))
    told = runs_of(moment, 4).tolist()
    kind = {name: i for i, name in enumerate(KINDS)}
    assert told == [
        [7, 4, 8, kind["used"]], [7, 20, 1, kind["used"]], [7, 21, 3, kind["reserved"]],
        [7, 16, 4, kind["rounding"]], [-1, 0, 4, kind["cached"]], [-1, -1, 12, kind["free"]],
    ]  # fmt: skip
