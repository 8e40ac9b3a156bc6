"""`experiment=calibrate` from the command line: measures, fits, and what it writes drives a simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]


def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "harness", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_this_machine_is_measured_and_simulated(tmp_path: Path) -> None:
    short = [
        "workload=fixed",
        "workload.prompt.value=12",
        "workload.output.value=20",
        "max_model_len=64",
        "kv_slots=512",
    ]
    size = ["calibrate.concurrency=[1,3]", "calibrate.passes=1", "calibrate.requests=3", "calibrate.rounds=1"]
    run = harness("experiment=calibrate", "device=cpu", "device.threads=1", *short, *size,
                  f"hydra.run.dir={tmp_path}/measured")  # fmt: skip
    assert run.returncode == 0, run.stderr
    summary = json.loads((tmp_path / "measured" / "summary.json").read_text())
    assert summary["steps"] >= 40
    kinds = pd.read_csv(tmp_path / "measured" / "calibration.csv")
    assert {"1 decode", "all"} <= set(kinds["steps"])
    simulated = harness("device=simulated", f"device.latency={tmp_path}/measured/latency.yaml", *short,
                        f"hydra.run.dir={tmp_path}/simulated")  # fmt: skip
    assert simulated.returncode == 0, simulated.stderr
    assert json.loads((tmp_path / "simulated" / "summary.json").read_text())["finished"] == 128


def test_a_simulated_device_has_nothing_to_measure(tmp_path: Path) -> None:
    run = harness("experiment=calibrate", "device=simulated", f"hydra.run.dir={tmp_path}")
    assert run.returncode == 1
    assert "times real steps" in run.stderr
