"""Every experiment with a figure, at a tiny size: it runs, draws, and puts published numbers beside ours."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf
from rich.console import Console

import harness.__main__  # noqa: F401  (its resolvers)
from harness.job import run_job
from harness.published import FOLDER, crossing, curve, load, rates
from harness.report import report_sweep
from harness.report.claims import CLAIMS, MISSING
from harness.report.figures import NAMES
from harness.tasks.claims import EXPERIMENTS, composed
from tests.figures import chat_rounds

FEW = ["workload.num_requests=60", "kv_slots=6000"]
SEARCH = ["workload.duration_s=40", "search.burst=40", "search.tolerance=0.5", "kv_slots=6000"]
JOBS = {
    "waste_breakdown": [[*FEW, f"system={s}", f"seed={n}"] for s in ("orca_max", "vllm") for n in (0, 1)],
    "batch_occupancy": [[*FEW, f"workload={w}", f"system={s}"] for w in ("sharegpt", "alpaca")
                        for s in ("orca_oracle", "vllm")],
    "block_size": [[*FEW, f"workload.arrival={a}", f"allocator.block_size={b}"] for a in ("burst", "poisson")
                   for b in (1, 16)],
    "chatbot": [[*SEARCH, "search.rates=[0.5]", f"system={s}"] for s in ("orca_max", "vllm")],
    "request_rate": [[*SEARCH, f"system={s}"] for s in ("orca_oracle", "vllm")],
    "capacity": [[*SEARCH, f"system={s}"] for s in ("vllm", "ideal")],
    "output_variance": [["workload.num_requests=40", f"cap={c}", f"system={s}"] for c in (32, 1536)
                        for s in ("static_lanes", "continuous_lanes", "vllm", "ideal")],
    "knobs": [["workload.num_requests=40", f"scheduler.max_num_seqs={n}", f"gpu_memory_utilization={m}",
               f"allocator.enable_prefix_caching={c}"] for n in (4, 16) for m in (0.7, 0.9) for c in (False, True)],
    "fragmentation": [[f"case={c}", f"system={s}"] for c in ("holes", "blocks")
                      for s in ("first_fit+exact", "first_fit_compacting+exact", "first_fit_growing+on_demand",
                                "rebuild+first_fit+exact", "paged+on_demand", "vattention")],
    "prefix_cache": [["workload.path=${repository:}/experiments/data/chat_rounds.jsonl", "workload.num_requests=60",
                      "max_model_len=2048", f"kv_slots={k}", f"allocator={a}"] for k in (4096, 16384)
                     for a in ("paged", "paged_cached", "radix")],
    "schedulers": [["workload.limit=80", f"workload.rate={r}", f"scheduler={s}"] for r in (2, 8)
                   for s in ("continuous", "shortest_predicted", "past_future")],
    "parallel_sampling": [[*SEARCH, "workload.duration_s=20", f"workload.n={n}", f"system={s}"] for n in (2, 4)
                          for s in ("orca_oracle", "vllm")],
    "beam_search": [[*SEARCH, "workload.duration_s=10", f"workload.n={n}", f"system={s}"] for n in (4, 6)
                    for s in ("orca_oracle", "vllm")],
    "memory_saved": [["workload=alpaca", "workload.num_requests=30", f"workload.use_beam_search={b}", f"workload.n={n}"]
                     for b in (False, True) for n in (2, 4)],
    "shared_prefix": [[*SEARCH, "workload.duration_s=10", f"lengths={k}", f"workload.shared_prefix={p}", f"system={s}"]
                      for k in ("middle", "long") for p in (80, 341)
                      for s in ("orca_oracle", "paged_cached+on_demand")],
    "swap_vs_recompute": [[*FEW, "workload.rate=4", f"scheduler.preemption={how}", f"allocator.block_size={b}"]
                          for how in ("recompute", "swap") for b in (16, 128)],
    "hybrid_memory": [["workload.num_requests=12", "workload.prompt.high=3000", "workload.output.high=60", f"model={m}",
                       "kv_bytes=600000000", "scheduler.max_num_seqs=8", f"allocator={a}"]
                      for m in ("gpt_oss_20b", "qwen3_next_80b_a3b") for a in ("paged", "vllm_hybrid", "jenga")],
    "pool_size": [["workload.num_requests=12", "workload.prompt.high=3000", "workload.output.high=60", f"model={m}",
                   "kv_bytes=600000000"] for m in ("gpt_oss_20b", "jamba_mini")],
    "claims": [[f"part={p}"] for p in ("lanes_static", "holes_first_fit_exact", "holes_paged_on_demand")],
}  # fmt: skip


# The searches of `chatbot` and `parallel_sampling`, and the sweeps of others, go the same ways.
UNPUBLISHED = (
    "capacity",
    "knobs",
    "schedulers",
    "fragmentation",
    "claims",
    "prefix_cache",
    "hybrid_memory",
    "pool_size",
)
SLOW = {"request_rate", "knobs", "beam_search", "shared_prefix", "parallel_sampling", "memory_saved", "block_size",
        "swap_vs_recompute", "output_variance", "prefix_cache", "chatbot", "schedulers", "pool_size"}  # fmt: skip


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in JOBS]
)
def reported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, str]:
    """(experiment, its folder, what was printed)."""
    name, folder = request.param, tmp_path_factory.mktemp(request.param)
    jobs = [[*job, f"experiment={name}"] for job in JOBS[name]]
    (folder / "plan.json").write_text(json.dumps([{"dir": str(i), "overrides": job} for i, job in enumerate(jobs)]))
    figure = None
    for i, job in enumerate(jobs):
        cfg = composed(job)
        figure = cfg.figure
        row = run_job(cfg, folder / str(i), job)
        assert row["status"] == "finished", row["error"]
    console = Console(file=io.StringIO(), width=100)
    report_sweep(folder, console, figure=figure)
    return name, folder, console.file.getvalue()  # type: ignore[attr-defined]


def test_it_draws_its_figure(reported: tuple[str, Path, str]) -> None:
    name, folder, printed = reported
    assert "warning: figure" not in printed
    assert [path.name for path in sorted((folder / "figures").iterdir())] == [f"{name}.png", f"{name}.svg"]


@pytest.mark.slow
def test_it_draws_repeats_with_their_intervals(reported: tuple[str, Path, str], tmp_path: Path) -> None:
    name, once, _ = reported
    plan = []
    for job in json.loads((once / "plan.json").read_text()):
        for repeat in range(3):
            shutil.copytree(once / job["dir"], folder := tmp_path / f"{job['dir']}_{repeat}")
            row = json.loads((folder / "summary.json").read_text())
            for metric, value in row.items():  # as far apart as to see it
                if isinstance(value, float):
                    row[metric] = value * (1 + 0.02 * repeat)
            row |= {"repeat": repeat, "seed": repeat}
            (folder / "summary.json").write_text(json.dumps(row))
            plan.append({"dir": folder.name, "overrides": [*job["overrides"], f"repeat={repeat}"]})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    console = Console(file=io.StringIO(), width=100)
    report_sweep(tmp_path, console, figure=name)
    printed = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "warning: figure" not in printed
    assert f"mean of {'6' if name == 'waste_breakdown' else '3'} repeats" in printed  # that one has two seeds
    assert (tmp_path / "figures" / f"{name}.png").exists()


def test_it_stands_beside_what_was_published(reported: tuple[str, Path, str]) -> None:
    name, folder, _ = reported
    if name in UNPUBLISHED:
        assert not (folder / "published.csv").exists()
        return
    table = pd.read_csv(folder / "published.csv")
    both = table.dropna(subset=["ours"])
    assert len(both)
    assert (100 * (both["ours"] / both["published"] - 1)).to_numpy() == pytest.approx(both["error_pct"].to_numpy())
    assert "# Beside the published numbers" in (folder / "REPORT.md").read_text()


def test_the_ideal_is_what_others_are_measured_by(reported: tuple[str, Path, str]) -> None:
    name, folder, _ = reported
    table = pd.read_csv(folder / "comparison.csv")
    assert ("pct_of_ideal" in table) == ("Ideal" in set(table["system"]))
    if name == "output_variance":
        ideal = table[table["system"] == "Ideal"]["pct_of_ideal"]
        assert ideal.tolist() == pytest.approx([100.0] * 2)  # each at its own cap


def test_claims_are_judged_by_runs_only(reported: tuple[str, Path, str]) -> None:
    name, folder, _ = reported
    if name == "claims":
        table = pd.read_csv(folder / "claims.csv")
        assert table["claim"].tolist() == [claim.text for claim in CLAIMS]
        assert set(table[table["runs"].isna()]["verdict"]) == {MISSING}
        judged = table.dropna(subset=["runs"])
        assert {"holes_first_fit_exact; holes_paged_on_demand", "lanes_static"} <= set(judged["runs"])
        assert "claims.md" in {path.name for path in folder.iterdir()}


def test_the_sweep_of_claims_runs_every_part() -> None:
    cfg = OmegaConf.load(EXPERIMENTS / "experiment" / "claims.yaml")
    assert [part.strip() for part in cfg.hydra.sweeper.params.part.split(",")] == list(cfg.parts)


@pytest.mark.slow
def test_every_part_of_claims_composes() -> None:
    for overrides in composed(["experiment=claims"]).parts.values():
        assert composed(overrides).task.startswith("harness.")


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_has_its_experiment(name: str) -> None:
    assert composed([f"experiment={name}"]).figure == name


def test_published_files_have_sources() -> None:
    for path in FOLDER.glob("*.json"):
        told = load(path.stem)["source"]
        assert told["how"]
        assert "arxiv" in told or "url" in told
    assert rates("fig12", "opt_13b_sharegpt", "static + contiguous(max_model_len)")[-1] == 0.25
    assert crossing(curve("fig12", "opt_13b_sharegpt", "vLLM"), 0.5) == pytest.approx(1.93, abs=0.005)
    assert crossing([[1, 0.1], [2, 0.2]], 0.5) is None


def test_the_chat_trace_is_what_its_script_makes() -> None:
    assert (EXPERIMENTS / "data" / "chat_rounds.jsonl").read_text() == chat_rounds.text()
