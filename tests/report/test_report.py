"""The whole report: the 2 x 2, the prediction, the figures, and sweeps of which parts are missing."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from harness.report import latency_cdf, report_job, report_sweep
from harness.report.comparison import comparison, read_jobs
from harness.report.prediction import fit_steps, pooled_steps, predict_jobs
from harness.report.repeats import aggregate
from harness.report.sweep import Sweep
from harness.report.two_by_two import two_by_two

from .conftest import LATENCY, SYSTEMS, build_scheduler, trace, write_job

QUIET = Console(quiet=True)
ALWAYS = {"throughput_latency", "memory_breakdown", "timeline", "latency_cdf", "step_time"}


def strict(text: str) -> object:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def figures(folder: Path) -> set[str]:
    """Names of the figures that are there as PNG and SVG and are not blank."""
    names = {path.stem for path in (folder / "figures").glob("*.png") if path.stat().st_size > 15_000}
    return {name for name in names if (folder / "figures" / f"{name}.svg").stat().st_size > 10_000}


# ---- the 2 x 2 -----------------------------------------------------------------------------------------------------


def test_two_by_two_is_exact_logarithms(seven: Path) -> None:
    groups = aggregate(comparison(read_jobs(seven)))
    values = {"static + contiguous(max_model_len)": 100.0, "static + paged(on_demand)": 250.0,
              "continuous + contiguous(max_model_len)": 200.0, "vLLM": 400.0}  # fmt: skip
    groups["output_throughput"] = groups["system"].map(values)
    (row,) = two_by_two(groups).to_dict("records")
    assert row["ln_paging"] == math.log(2.5)
    assert row["ln_continuous"] == math.log(2)
    assert row["ln_both"] == math.log(4)
    assert row["ln_remainder"] == pytest.approx(math.log(0.8), abs=1e-15)  # negative: the gains overlap
    assert two_by_two(groups[groups["system"] != "vLLM"]).empty


# ---- the prediction ------------------------------------------------------------------------------------------------


def test_a_simulated_run_is_predicted_within_one_percent(seven: Path) -> None:
    table = predict_jobs(seven, build_scheduler)
    assert table["system"].tolist() == list(SYSTEMS)
    assert table["simulated_error_pct"].abs().max() < 1


def test_arrivals_over_time_are_replayed_as_they_were(tmp_path: Path) -> None:
    write_job(tmp_path / "0", "vLLM", trace(60, rate=0.5))
    assert predict_jobs(tmp_path, build_scheduler)["simulated_error_pct"].abs().max() < 1


def test_the_fit_keeps_the_total_when_step_times_are_noisy(seven: Path) -> None:
    steps = pooled_steps(seven, read_jobs(seven))
    rng = np.random.default_rng(0)
    steps["step_ms"] *= rng.lognormal(0, 0.3, len(steps))
    times = fit_steps(steps)
    assert times.latency.predict(steps).sum() / 1e6 == pytest.approx(steps["step_ms"].sum(), rel=0.01)
    assert 15 < times.held_back_pct < 30  # median |error| of lognormal(0.3) noise is about 20 %
    strict(json.dumps(times.to_dict(), allow_nan=False))


def test_the_decode_step_is_taken_apart_into_its_true_parts(seven: Path) -> None:
    times = fit_steps(pooled_steps(seven, read_jobs(seven)))
    step, lane, context = LATENCY.coefficients[:3]
    assert times.base_ms == pytest.approx(step / 1e6, rel=0.02)
    assert times.per_sequence_ms == pytest.approx(lane / 1e6, rel=0.05)
    assert times.per_context_us == pytest.approx(context / 1e3, rel=0.05, abs=1e-3)
    assert times.decode_ms(np.array([4.0]), 100)[0] == pytest.approx((step + 4 * lane + 400 * context) / 1e6, rel=0.05)


# ---- the report ----------------------------------------------------------------------------------------------------


def test_seven_systems_get_every_figure_and_file(seven: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(seven, tmp_path / "sweep")
    table = report_sweep(folder, QUIET, build_scheduler=build_scheduler)
    assert figures(folder) == ALWAYS | {"two_by_two"}
    assert table["simulated_error_pct"].abs().max() < 1
    assert {"two_by_two.csv", "prediction.csv", "comparison.csv"} <= {path.name for path in folder.iterdir()}
    strict((folder / "step_time.json").read_text())
    text = (folder / "REPORT.md").read_text()
    assert "![two_by_two](figures/two_by_two.png)" in text
    assert "not padded" in text
    assert "decode step ≈" in text.lower()


def test_one_job_and_a_sweep_of_one_job(sweep: Callable[..., Path]) -> None:
    folder = sweep(["vLLM"])
    report_job(folder / "0", QUIET)
    assert figures(folder / "0") == {"memory_breakdown", "latency_cdf", "timeline"}
    report_sweep(folder, QUIET, build_scheduler=build_scheduler)
    assert figures(folder) == ALWAYS
    same = [path / "figures" / "memory_breakdown.svg" for path in (folder, folder / "0")]
    assert same[0].read_bytes() == same[1].read_bytes()  # byte for byte: no dates, no random ids


@pytest.mark.slow
def test_twenty_systems(tmp_path: Path) -> None:
    for i in range(20):
        system = list(SYSTEMS)[i % 7]
        summary = write_job(tmp_path / str(i), system, trace(12), capacity=4096)
        (tmp_path / str(i) / "summary.json").write_text(json.dumps(summary | {"system": f"{system} no. {i}"}))
    report_sweep(tmp_path, QUIET, build_scheduler=build_scheduler)
    assert figures(tmp_path) >= ALWAYS


def test_a_sweep_over_numbers_gets_lines(tmp_path: Path) -> None:
    for i, rate in enumerate((0.5, 1, 4)):
        write_job(tmp_path / str(i), "vLLM", trace(24, rate=rate), overrides=[f"workload.rate={rate}"])
    report_sweep(tmp_path, QUIET, build_scheduler=build_scheduler)
    assert figures(tmp_path) == ALWAYS | {"sweep_workload_rate"}


def test_what_finished_is_reported_when_the_rest_is_missing(sweep: Callable[..., Path]) -> None:
    folder = sweep(["vLLM", "Orca (Max)", "Orca (Pow2)"])
    who = {"system": "Orca (Max)", "allocator": "buddy", "reservation": "max_model_len", "scheduler": "continuous"}
    failed = who | {"status": "failed", "error": "AllocatorError: freed twice", "overrides": []}
    (folder / "1" / "summary.json").write_text(json.dumps(failed))
    (folder / "2" / "steps.csv").unlink()  # figures that need it fail, the others are drawn
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    table = report_sweep(folder, console, baseline="no such system", build_scheduler=build_scheduler)
    text = console.export_text()
    assert table["status"].tolist() == ["finished", "failed", "finished"]
    assert figures(folder) >= {"throughput_latency", "memory_breakdown", "latency_cdf"}
    for expected in ("no such system", "freed twice", "warning: figure timeline"):
        assert expected in text


def test_nothing_finished(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps([{"dir": "0", "overrides": ["system=vllm"]}]))
    assert report_sweep(tmp_path, QUIET)["status"].tolist() == ["not run"]
    assert (tmp_path / "REPORT.md").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    assert report_sweep(empty, QUIET).empty


def test_many_systems_are_ranges_not_curves(seven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency_cdf, "CURVES", 3)
    figure = latency_cdf.draw(Sweep.read(seven))
    assert figure is not None
    assert len(figure.axes[0].get_yticklabels()) == 7


def test_time_means_over_time_keep_the_integral(seven: Path) -> None:
    sweep = Sweep.read(seven)
    steps = sweep.steps("6")
    spent = steps[["schedule_ms", "execute_ms", "complete_ms", "idle_ms"]].sum(axis=1) / 1e3
    edges, values = sweep.over_time("6", ["used", "num_seqs"], bins=50)
    assert values.shape == (50, 2)
    assert np.diff(edges) @ values[:, 0] == pytest.approx((steps["used"] * spent).sum())
    assert sweep.capacity("6") == 8192


def test_importing_the_report_is_cheap() -> None:
    code = "import sys, harness.report; assert not {'pandas', 'matplotlib', 'rich', 'torch'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_prediction_leaves_out_what_it_cannot_rebuild(sweep: Callable[..., Path]) -> None:
    folder = sweep(["vLLM", "vLLM"])
    requests = pd.read_csv(folder / "0" / "requests.csv")
    requests.loc[0, "cached_tokens"] = 16  # prefix reuse depends on contents, which the table does not keep
    requests.to_csv(folder / "0" / "requests.csv", index=False)
    assert predict_jobs(folder, build_scheduler)["simulated_error_pct"].isna().tolist() == [True, False]


def test_noisy_steps_are_called_noisy(sweep: Callable[..., Path]) -> None:
    folder = sweep(["vLLM"])
    steps = pd.read_csv(folder / "0" / "steps.csv")
    steps["execute_ms"] *= np.random.default_rng(0).lognormal(0, 0.4, len(steps))
    steps.to_csv(folder / "0" / "steps.csv", index=False)
    report_sweep(folder, QUIET, build_scheduler=build_scheduler)
    assert "step times are noisy: a fitted model misses them by" in (folder / "REPORT.md").read_text()
