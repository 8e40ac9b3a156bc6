"""The report page: what is on it comes from the tables."""

from __future__ import annotations

import base64
import itertools
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from harness.job import run_job
from harness.metrics.memory_map import FILE, KINDS
from harness.report.page import write_page
from harness.report.page.bound import CAUSES, bound_over_time, cause_of
from harness.report.page.lanes import lanes
from harness.report.page.pool import NOBODY, pool_map
from harness.report.sweep import Sweep
from harness.tasks.claims import composed

SMALL = ["device=simulated", "workload=uniform", "workload.num_requests=16", "workload.prompt.low=4",
         "workload.prompt.high=60", "workload.output.low=2", "workload.output.high=20", "max_model_len=96",
         "kv_slots=256"]  # fmt: skip


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    for name in ("static+contiguous+max_model_len", "vllm"):
        overrides = [*SMALL, f"system={name}"]
        assert run_job(composed(overrides), folder / name, overrides)["status"] == "finished"
    return Sweep.read(folder)


@pytest.fixture(scope="module")
def page(sweep: Sweep) -> str:
    path = write_page(sweep, findings=["Is <b>it</b> so?"], notes=["two"])
    return path.read_text(encoding="utf-8")


def unpacked(text: str, kind: str, cells: int) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype=kind).reshape(-1, cells)


def test_the_page_needs_no_network_and_stays_small(page: str) -> None:
    own = page[: page.index("plotly.js v")] + page[page.rindex("</script>\n<script>") :]
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", own)
    assert "Is &lt;b&gt;it&lt;/b&gt; so?" in page
    assert len(page) < 20e6


def test_the_page_holds_every_system_and_what_the_table_says(page: str, sweep: Sweep) -> None:
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
    labels = sweep.done["label"].tolist()
    assert [system["label"] for system in data["maps"]] == [system["label"] for system in data["lanes"]] == labels
    bars = data["charts"]["throughput"]["data"][0]
    assert dict(zip(bars["y"], bars["x"], strict=True)) == pytest.approx(
        dict(zip(labels, sweep.done["output_throughput"], strict=True))
    )
    books = data["charts"]["books"]["data"]
    assert sum(bar["x"][0] for bar in books) == pytest.approx(100)


def test_the_pool_on_the_page_is_the_memory_map(sweep: Sweep) -> None:
    """Cells of one slot: counted, they are the map's rows."""
    told = pool_map(sweep.folder / "vllm", 256, 1e9)
    assert told is not None
    kinds, owners = unpacked(told["kinds"], "u1", 256), unpacked(told["requests"], "<u2", 256)
    runs = pd.read_parquet(sweep.folder / "vllm" / FILE)
    for at, (_, moment) in enumerate(runs.groupby("start_s")):
        slots = moment.groupby("kind", observed=False)["slots"].sum()
        counted = np.bincount(kinds[at], minlength=len(KINDS))
        assert dict(zip(KINDS, counted, strict=True)) == slots.to_dict()
        held = moment[moment["request"] >= 0].groupby("request")["slots"].sum()
        assert {
            r: n for r, n in zip(*np.unique(owners[at], return_counts=True), strict=True) if r != NOBODY
        } == held.to_dict()
    assert told["times"][-1] == 1e9


def test_a_pool_larger_than_the_page_shows_middle_slots(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pool_map(sweep.folder / "vllm", 256, 1.0)
    monkeypatch.setattr("harness.report.page.pool.CELLS", 32)
    small = pool_map(sweep.folder / "vllm", 256, 1.0)
    assert whole is not None
    assert small is not None
    assert small["slots"] == 8
    assert (unpacked(small["kinds"], "u1", 32) == unpacked(whole["kinds"], "u1", 256)[:, 4::8]).all()


def test_phases_of_a_request_follow_one_another_and_fill_its_life(sweep: Sweep) -> None:
    for system in ("vllm", "static+contiguous+max_model_len"):
        told = lanes(sweep.folder / system)
        requests = pd.read_csv(sweep.folder / system / "requests.csv").set_index("id")
        assert told is not None
        assert told["of"] == len(requests) == len(told["requests"])
        for row, number in enumerate(told["requests"]):
            spans = sorted((start, stop, phase) for at, phase, start, stop in told["spans"] if at == row)
            for (_, stop, _), (start, _, _) in itertools.pairwise(spans):
                assert start == pytest.approx(stop, abs=2e-6)
            assert spans[0][0] == pytest.approx(requests.loc[number, "arrival_s"], abs=2e-6)
            ends = [stop for _, stop, phase in spans if phase != "idle"]
            assert max(ends) == pytest.approx(requests.loc[number, "last_token_s"], abs=2e-6)
            gone = {phase for _, _, phase in spans} & {"preempted"}
            assert bool(gone) <= bool(requests.loc[number, "preemptions"])
    assert any(phase == "idle" for _, phase, _, _ in told["spans"])  # lanes of a static batch


def test_what_bound_a_step_is_the_first_cause_that_applies() -> None:
    names = ["num_seqs", "decode_seqs", "idle_lanes", "prefill_tokens", "waiting", "head_blocked"]
    rows = [
        (3, 3, 0, 0, 5, 1, "slots"), (4, 4, 0, 0, 5, 0, "sequences"), (2, 1, 2, 9, 5, 0, "sequences"),
        (2, 1, 0, 99, 5, 0, "tokens"), (2, 2, 0, 0, 5, 0, "closed"), (2, 2, 0, 0, 0, 0, "compute"),
        (0, 0, 0, 0, 0, 0, "arrivals"),
    ]  # fmt: skip
    steps = pd.DataFrame([row[:6] for row in rows], columns=names)
    assert [list(CAUSES)[i] for i in cause_of(steps, 4, 100)] == [row[6] for row in rows]


def test_rows_that_stand_for_jumps_take_the_time_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run of a million requests: a jump's first step may compute prompts, and take longer than its others."""
    monkeypatch.setattr("harness.metrics.steps.DETAILED", 0)
    row = run_job(composed([*SMALL, "system=vllm", "workload.num_requests=64"]), tmp_path / "0", [])
    steps = pd.read_csv(tmp_path / "0" / "steps.csv")
    assert (steps["repeat"] > 1).any()
    edges, shares = bound_over_time(tmp_path / "0" / "steps.csv", 256, 2560)
    assert edges[-1] == pytest.approx(row["duration_s"], rel=1e-6)
    assert shares.sum(axis=1) == pytest.approx(1)
    assert Sweep.read(tmp_path).over_time("0", ["used"])[0][-1] == pytest.approx(row["duration_s"], rel=1e-6)


def test_causes_share_out_all_of_the_time(sweep: Sweep) -> None:
    edges, shares = bound_over_time(sweep.folder / "vllm" / "steps.csv", 256, 2560, bins=20)
    assert shares.sum(axis=1) == pytest.approx(1)
    row = sweep.done.set_index("system").loc["vLLM"]
    assert edges[-1] == pytest.approx(row["duration_s"], rel=1e-6)
