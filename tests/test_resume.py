"""What is left of a sweep is run as it was planned, and the whole is reported as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import harness.report
from harness.folders.owner import LOCK, Lock
from harness.sweeps.launchers import STOPPED

from .command import FAST, command
from .test_folders import _interrupting

ROOT = Path(__file__).resolve().parents[1]
SWEEP = ("-m", *FAST, "system=vllm,orca_max", "seed=0,1")
TABLES = ("requests.csv", "steps.csv", "workload.jsonl", "config.yaml", "summary.json")


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted sweep of four jobs."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.report, "draw_all", lambda *args: [])
        assert command(folder, *SWEEP, "hydra.sweep.dir=sweep").code == 0
    return folder / "sweep"


@pytest.fixture
def sweep(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "sweep")


def tables(folder: Path) -> dict[str, bytes]:
    found = {
        f"{path.parent.name}/{path.name}": path.read_bytes() for name in TABLES for path in folder.glob(f"*/{name}")
    }
    return found | {"comparison.csv": (folder / "comparison.csv").read_bytes()}


def kill(job: Path) -> None:
    """Leave a job's folder as kill -9 would, in the middle of its steps."""
    (job / "summary.json").unlink()
    (job / "environment.json").unlink()
    (job / "requests.csv").unlink()
    (job / "steps.csv").write_text((job / "steps.csv").read_text()[:200])
    (job / LOCK).write_text("process 1 on elsewhere")


def test_what_is_missing_killed_or_failed_is_run_and_nothing_else(whole, sweep):
    shutil.rmtree(sweep / "3")
    kill(sweep / "1")
    row = json.loads((sweep / "2" / "summary.json").read_text())
    (sweep / "2" / "summary.json").write_text(json.dumps(row | {"status": "failed", "error": "the disk was full"}))
    (sweep / "2" / "traceback.txt").write_text("an old one")
    (sweep / "2" / "rate_7").mkdir()
    kept = (sweep / "0" / "summary.json").stat().st_mtime_ns
    (sweep / STOPPED).touch()
    done = command(sweep.parent, "resume", "sweep")
    assert done.code == 0, done.err
    assert "1 of 4 jobs are finished, 3 to run" in done.err
    assert "warning" not in done.err
    assert tables(sweep) == tables(whole)
    assert (sweep / "0" / "summary.json").stat().st_mtime_ns == kept
    assert not (sweep / "2" / "traceback.txt").exists()
    assert not (sweep / "2" / "rate_7").exists()
    assert not list(sweep.rglob(LOCK))
    again = command(sweep.parent, "resume", "sweep")
    assert again.code == 0
    assert "4 of 4 jobs are finished, 0 to run" in again.err
    assert tables(sweep) == tables(whole)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupted_sweep_becomes_the_uninterrupted_one(whole, tmp_path, monkeypatch, number):
    with monkeypatch.context() as patch:
        _interrupting(patch, number, "1")
        assert command(tmp_path, *SWEEP, "hydra.sweep.dir=sweep").code == 128 + number
    assert command(tmp_path, "resume", "sweep").code == 0
    assert tables(tmp_path / "sweep") == tables(whole)


def test_jobs_run_as_they_were_planned_whatever_changed_since(sweep):
    plan = json.loads((sweep / "plan.json").read_text())
    plan["jobs"][1]["config"]["seed"] = 7
    plan["jobs"][1]["config"]["scheduler"]["max_num_seqs"] = 5
    plan["code"] |= {"sources": "of yesterday", "commit": "abc"}
    plan["code"]["packages"]["numpy"] = "1.0"
    (sweep / "plan.json").write_text(json.dumps(plan))
    shutil.rmtree(sweep / "1")
    done = command(sweep.parent, "resume", "sweep")
    assert done.code == 0
    summary = json.loads((sweep / "1" / "summary.json").read_text())
    assert (summary["seed"], summary["max_num_seqs"]) == (7, 5)
    assert "warning: sources changed since the sweep was planned: of yesterday → " in done.err
    assert "warning: packages changed since the sweep was planned: numpy 1.0 → " in done.err


@pytest.mark.slow
def test_paths_count_from_where_the_sweep_began(sweep, tmp_path):
    shutil.copy(sweep / "0" / "workload.jsonl", tmp_path / "mine.jsonl")
    arguments = ("-m", "device=simulated", "workload=trace", "workload.path=mine.jsonl", "seed=0,1")
    assert command(tmp_path, *arguments, "hydra.sweep.dir=traced").code == 0
    shutil.rmtree(tmp_path / "traced" / "1")
    assert command(Path("/"), "resume", str(tmp_path / "traced")).code == 0
    plan = json.loads((tmp_path / "traced" / "plan.json").read_text())
    (tmp_path / "traced" / "plan.json").write_text(json.dumps(plan | {"directory": "/no/such/place"}))
    shutil.rmtree(tmp_path / "traced" / "1")
    done = command(tmp_path, "resume", "traced")
    assert done.code == 0
    assert "/no/such/place" in done.err


def test_a_sweep_under_way_is_not_resumed(sweep):
    lock = Lock.of(sweep)
    assert lock
    with lock:
        done = command(sweep.parent, "resume", "sweep")
    assert done.code == 2
    assert "under way" in done.err


def test_another_launcher_may_go_on_and_nothing_else_may_change(sweep):
    for word in ("seed=3", "allocator=buddy", "hydra.sweep.dir=other", "hydra.sweep.subdir=x", "hydra.mode=RUN"):
        done = command(sweep.parent, "resume", "sweep", word)
        assert done.code == 2
        assert "as it was planned" in done.err
    missing = command(sweep.parent, "resume", "sweep", "hydra/launcher=jobli")
    assert missing.code == 2
    assert "joblib" in missing.err


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda folder: None, "nothing of a run or a sweep"),
        (lambda folder: folder.rmdir(), "not there"),
        (lambda folder: (folder / "plan.json").write_text('[{"dir": "0", "over'), "plan.json is not the plan"),
        (lambda folder: (folder / "plan.json").write_text('[{"dir": "0"}]'), "no plan that holds the configurations"),
        (lambda folder: (folder / "plan.json").write_text('{"jobs": [{"dir": "0", "config": 3}]}'), "plan.json is not"),
        (lambda folder: (folder / "plan.json").write_text('{"jobs": {"0": 1}}'), "plan.json is not the plan"),
        (lambda folder: (folder / "config.yaml").write_text("a: 1"), "single run"),
    ],
)
def test_foreign_and_corrupted_folders_get_an_answer(tmp_path, make, answer):
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    done = command(tmp_path, "resume", "folder")
    assert done.code == 2
    assert answer in done.err
    assert "Traceback" not in done.err


def test_a_job_whose_planned_configuration_is_no_longer_one_fails_alone(sweep):
    plan = json.loads((sweep / "plan.json").read_text())
    plan["jobs"][1]["config"] = {"seed": 3}
    (sweep / "plan.json").write_text(json.dumps(plan))
    shutil.rmtree(sweep / "1")
    done = command(sweep.parent, "resume", "sweep")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert pd.read_csv(sweep / "comparison.csv")["status"].tolist() == ["finished", "failed", "finished", "finished"]


@pytest.mark.slow
def test_folders_with_accents_and_long_paths(tmp_path, whole):
    deep = tmp_path / ("é ü, 漢=(1)" + "x" * 150) / ("b c" * 60)
    deep.mkdir(parents=True)
    assert command(tmp_path, *SWEEP, f"hydra.sweep.dir={deep / 'swéep'}").code == 0
    shutil.rmtree(deep / "swéep" / "2")
    assert command(tmp_path, "resume", str(deep / "swéep")).code == 0
    assert tables(deep / "swéep") == tables(whole)


# ---- kill -9 -------------------------------------------------------------------------------------------------------

KILLED = ("-m", "device=simulated", "workload.num_requests=400", "system=vllm,orca_max,orca_pow2", "seed=0,1")


def _begun(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    return subprocess.Popen([sys.executable, "-m", "harness", *arguments, "hydra.sweep.dir=sweep"], cwd=folder,
                            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            start_new_session=True)  # fmt: skip


def _wait_for(folder: Path, pattern: str, count: int = 1) -> None:
    deadline = time.monotonic() + 200
    while len(list(folder.glob(pattern))) < count and time.monotonic() < deadline:
        time.sleep(0.01)


def _killed_and_resumed(folder: Path, delay: float, *arguments: str) -> None:
    process = _begun(folder, *KILLED, *arguments)
    _wait_for(folder, "sweep/plan.json")
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert command(folder, "resume", "sweep").code == 0


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("unkilled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.report, "draw_all", lambda *args: [])
        assert command(folder, *KILLED, "hydra.sweep.dir=sweep").code == 0
    return tables(folder / "sweep")


def test_kill_9_and_resume(tmp_path, unkilled):
    """In the middle of the second job; the whole is equal to the byte."""
    process = _begun(tmp_path, *KILLED)
    _wait_for(tmp_path, "sweep/1/steps.csv")
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "sweep" / "comparison.csv").exists()
    assert command(tmp_path, "report", "sweep").code == 1
    assert command(tmp_path, "resume", "sweep").code == 0
    assert tables(tmp_path / "sweep") == unkilled


@pytest.mark.slow  # 20 times 10 s
@pytest.mark.parametrize("moment", range(20))
def test_kill_9_at_any_moment_and_resume(tmp_path, unkilled, moment):
    delay = random.Random(moment).uniform(0, 6)
    _killed_and_resumed(tmp_path, delay)
    assert tables(tmp_path / "sweep") == unkilled
