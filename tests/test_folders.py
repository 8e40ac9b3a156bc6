"""A folder is one's own: in use, holding results or free; and what is reported of whatever lies in one."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

from harness import gpu_check, job
from harness.errors import HarnessError
from harness.files import write_json, written
from harness.folders.owner import LOCK, Lock, acquire, lock_owner
from harness.folders.plan import plain, read_plan

from .command import FAST, command

SWEEP = ("-m", *FAST, "allocator.block_size=8,16")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of three jobs, one of which failed."""
    folder = tmp_path_factory.mktemp("swept")
    assert command(folder, "-m", *FAST, "allocator.block_size=8,3,16", "hydra.sweep.dir=sweep").code == 1
    return folder / "sweep"


@pytest.fixture
def sweep(swept: Path, tmp_path: Path) -> Path:
    return shutil.copytree(swept, tmp_path / "sweep")


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time of a report."""
    import harness.report

    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])


# ---- in use, or holding results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(*SWEEP, "hydra.sweep.dir=sweep"), (*FAST, "hydra.run.dir=sweep")])
def test_a_folder_with_results_is_refused_and_left_as_it_is(sweep, arguments):
    before = {path: path.stat().st_mtime_ns for path in sweep.rglob("*")}
    done = command(sweep.parent, *arguments)
    assert done.code == 2
    key = arguments[-1].partition("=")[0]
    for answer in ("holds results", f"python -m harness report {sweep}", f"{key}=DIR"):
        assert answer in done.err
    assert {path: path.stat().st_mtime_ns for path in sweep.rglob("*")} == before


def test_a_run_into_the_folder_of_a_run_is_refused(sweep, tmp_path):
    assert command(tmp_path, *FAST, "hydra.run.dir=sweep/0").code == 2
    assert command(tmp_path, *FAST, "hydra.run.dir=run").code == 0
    assert command(tmp_path, *SWEEP, "hydra.sweep.dir=run").code == 2


def test_an_empty_folder_is_fine_and_so_is_one_with_a_log(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "log.txt").write_text("from the shell's own >")
    assert command(tmp_path, *FAST, "hydra.run.dir=run").code == 0
    assert command(tmp_path, *SWEEP, "hydra.sweep.dir=sweep").code == 0
    assert not list(tmp_path.rglob(LOCK))


@pytest.mark.parametrize(
    ("arguments", "key"), [pytest.param(FAST, "hydra.run.dir", marks=pytest.mark.slow), (SWEEP, "hydra.sweep.dir")]
)
def test_a_folder_in_use_is_refused(tmp_path, arguments, key):
    lock = Lock.of(tmp_path / "mine")
    assert lock
    with lock:
        done = command(tmp_path, *arguments, f"{key}=mine")
    assert done.code == 2
    assert f"in use by process {os.getpid()}" in done.err
    assert f"{key}=DIR" in done.err
    assert command(tmp_path, *arguments, f"{key}=mine").code == 0


def test_the_lock_of_a_killed_process_is_no_folder_in_use(tmp_path):
    code = "import os, sys; from harness.folders.owner import *; Lock.of(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / LOCK).exists()
    assert lock_owner(tmp_path) is None
    assert command(tmp_path.parent, *FAST, f"hydra.run.dir={tmp_path}").code == 0


def test_of_two_in_the_same_instant_one_gets_the_folder_and_the_other_one_beside_it(tmp_path):
    place, lock = acquire(tmp_path / "now", "hydra.sweep.dir", asked_for=False)
    with lock:
        other, second = acquire(tmp_path / "now", "hydra.sweep.dir", asked_for=False)
        second.release()
        with pytest.raises(HarnessError, match="in use"):
            acquire(tmp_path / "now", "hydra.sweep.dir", asked_for=True)
    assert (place.name, other.name) == ("now", "now_2")


def _take(folder: Path, barrier, found) -> None:
    barrier.wait()
    try:
        _, lock = acquire(folder, "hydra.sweep.dir", asked_for=True)
    except HarnessError:
        found.put(0)
        return
    (folder / "plan.json").write_text("[]")
    lock.release()
    found.put(1)


def test_many_at_once_and_only_one_has_it(tmp_path):
    """The winner may be done before another one looks: then its results refuse it."""
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        barrier, found = context.Barrier(4), context.Queue()
        each = [context.Process(target=_take, args=(tmp_path / str(attempt), barrier, found)) for _ in range(4)]
        for one in each:
            one.start()
        assert sum(found.get() for _ in each) == 1
        for one in each:
            one.join()


def test_whoever_waits_for_a_folder_gets_it_in_the_end(tmp_path):
    first, order = Lock.of(tmp_path), []
    assert first
    waiting = threading.Thread(target=lambda: order.append(Lock.of(tmp_path, wait=True)))
    waiting.start()
    order.append("released")
    first.release()
    waiting.join()
    assert order[0] == "released"
    order[1].release()


def test_a_sweep_that_is_planned_wrongly_leaves_nothing(tmp_path):
    done = command(tmp_path, "-m", *FAST, "system=vllm,vlm", "hydra.sweep.dir=sweep")
    assert done.code == 2
    assert "vlm" in done.err
    assert not (tmp_path / "sweep").exists()
    same = command(tmp_path, *SWEEP, "hydra.sweep.dir=sweep", "hydra.sweep.subdir=one")
    assert same.code == 2
    assert "two jobs" in same.err
    assert not (tmp_path / "sweep").exists()


def test_a_check_of_the_gpu_replaces_its_own_files_only(tmp_path):
    out = tmp_path / "out"
    with gpu_check.take(out):
        (out / "headline" / "vllm").mkdir(parents=True)
        (out / "headline" / "vllm" / "traceback.txt").write_text("an old one")
        (out / "answers.csv").write_text("")
        with pytest.raises(HarnessError, match="in use"):
            gpu_check.take(out)
    (out / "notes.md").write_text("mine")
    with gpu_check.take(out):
        assert sorted(path.name for path in out.iterdir()) == [LOCK, "check.json", "notes.md"]
    for name in ("headline", "kernels_mine.csv", "summary.json"):
        other = tmp_path / name
        other.mkdir()
        (other / name).write_text("")
        with pytest.raises(HarnessError, match=name):
            gpu_check.take(other)
        assert [path.name for path in other.iterdir()] == [name]


# ---- what is written -----------------------------------------------------------------------------------------------


def test_a_file_is_whole_or_not_there(tmp_path):
    path = tmp_path / "summary.json"
    write_json(path, {"value": 1})
    with pytest.raises(ZeroDivisionError), written(path) as file:
        file.write(f"half of {1 / 0}")
    assert json.loads(path.read_text()) == {"value": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["summary.json"]
    write_json(path, {"nan": float("nan"), "list": [float("inf"), 2]})
    assert json.loads(path.read_text()) == {"nan": None, "list": [None, 2]}


def test_an_old_traceback_does_not_lie_beside_finished(tmp_path):
    from harness.tasks.claims import composed

    for overrides, status in ((["allocator.block_size=3"], "failed"), ([], "finished")):
        row = job.run_job(composed([*FAST, *overrides]), tmp_path, overrides)
        assert row["status"] == status
        assert (tmp_path / "traceback.txt").exists() == (status == "failed")


def test_the_plan_says_all_that_a_reader_needs(swept):
    plan = read_plan(swept)
    assert plan
    assert [job.dir for job in plan.jobs] == ["0", "1", "2"]
    assert plan.jobs[1].names["allocator"].startswith("paged")
    assert plan.jobs[1].cfg.allocator.block_size == 3
    assert plan.command[0] == "-m"
    assert plan.code["commit"]


def test_a_configuration_that_json_cannot_keep_is_kept_all_the_same():
    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"sizes": {4: 2}, "rate": float("inf"), "path": "${sizes}"})
    assert OmegaConf.create(plain(cfg)) == cfg
    assert OmegaConf.create(plain(OmegaConf.create({"a": [1, None, "x"]}))) == {"a": [1, None, "x"]}


# ---- reports made later --------------------------------------------------------------------------------------------


def test_the_report_of_a_sweep_can_be_made_again(sweep):
    before = (sweep / "comparison.csv").read_bytes()
    for name in ("comparison.csv", "REPORT.md", "two_by_two.csv"):
        (sweep / name).unlink(missing_ok=True)
    done = command(sweep.parent, "report", "sweep")
    assert done.code == 1  # one of its jobs failed
    assert "must be a power" in done.out.replace("\n", " ")
    assert (sweep / "comparison.csv").read_bytes() == before
    assert (sweep / "REPORT.md").exists()


@pytest.mark.slow
def test_a_job_of_a_sweep_can_be_reported_alone(sweep):
    done = command(sweep.parent, "report", "sweep/0")
    assert done.code == 0
    assert "TTFT" in done.out
    failed = command(sweep.parent, "report", "sweep/1")
    assert failed.code == 1
    assert "must be a power" in failed.out.replace("\n", " ")


def test_what_a_killed_sweep_left_is_reported(sweep):
    (sweep / "0" / "summary.json").unlink()  # killed in the middle of it, and the last never began
    shutil.rmtree(sweep / "2")
    done = command(sweep.parent, "report", "sweep")
    assert done.code == 1
    table = pd.read_csv(sweep / "comparison.csv")
    assert table["status"].tolist() == ["interrupted", "failed", "not run"]
    assert table["system"].str.contains("paged").all()


def test_a_job_under_way_is_called_running(sweep):
    (sweep / "0" / "summary.json").unlink()
    lock = Lock.of(sweep / "0")
    assert lock
    with lock:
        command(sweep.parent, "report", "sweep")
    assert pd.read_csv(sweep / "comparison.csv")["status"].tolist() == ["running", "failed", "finished"]


@pytest.mark.slow
def test_only_what_the_plan_lists_is_reported(sweep):
    shutil.copytree(sweep / "0", sweep / "7")
    command(sweep.parent, "report", "sweep")
    assert pd.read_csv(sweep / "comparison.csv")["dir"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_jobs_without_a_plan_are_reported_as_they_lie_there(sweep):
    (sweep / "plan.json").unlink()
    command(sweep.parent, "report", "sweep")
    assert pd.read_csv(sweep / "comparison.csv")["status"].tolist() == ["finished", "failed", "finished"]


def test_the_plan_of_an_earlier_version_is_read(sweep):
    jobs = [{"dir": str(n), "overrides": [f"allocator.block_size={size}"]} for n, size in enumerate((8, 3, 16, 32))]
    (sweep / "plan.json").write_text(json.dumps(jobs))
    command(sweep.parent, "report", "sweep")
    assert pd.read_csv(sweep / "comparison.csv")["status"].tolist() == ["finished", "failed", "finished", "not run"]


def _foreign(folder: Path) -> None:
    (folder / "photo.png").write_bytes(b"\x89PNG")
    (folder / "src").mkdir()


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (lambda folder: folder.rmdir(), "not there"),
        (lambda folder: None, "nothing of a run or a sweep"),
        (_foreign, "nothing of a run or a sweep"),
        (lambda folder: (folder / "plan.json").write_text('[{"dir": "0", "over'), "plan.json is not the plan"),
        (lambda folder: (folder / "plan.json").write_bytes(b"\xff\xfe\x00"), "plan.json is not the plan"),
        (lambda folder: (folder / "plan.json").write_text('{"name": "a plan of the house"}'), "plan.json is not"),
        (lambda folder: (folder / "plan.json").write_text('["a", "b"]'), "plan.json is not the plan"),
        (lambda folder: (folder / "plan.json").write_text('[{"dir": "../../etc"}]'), "plan.json is not the plan"),
        (lambda folder: (folder / "summary.json").write_text('{"status": "fini'), "summary.json can't be read"),
        (lambda folder: (folder / "summary.json").write_text("[1, 2]"), "summary.json is not what a job writes"),
        (lambda folder: (folder / "summary.json").write_text('{"total": 5}'), "summary.json is not what a job writes"),
        (lambda folder: (folder / "config.yaml").write_text("a: 1"), "did not come to its end"),
    ],
)
def test_foreign_empty_and_corrupted_folders_get_an_answer(tmp_path, make, answer):
    folder = tmp_path / "folder"
    folder.mkdir()
    make(folder)
    done = command(tmp_path, "report", "folder")
    assert done.code == 2
    assert answer in done.err
    assert "Traceback" not in done.err


def test_a_summary_that_was_cut_costs_its_own_row_only(sweep):
    (sweep / "0" / "summary.json").write_text('{"status": "finished", "system": "vL')
    (sweep / "0" / "steps.csv").write_text("")
    (sweep / "2" / "requests.csv").write_bytes(b"\x00\xff" * 100)
    assert command(sweep.parent, "report", "sweep").code == 1
    assert pd.read_csv(sweep / "comparison.csv")["status"].tolist() == ["interrupted", "failed", "finished"]


# ---- signals -------------------------------------------------------------------------------------------------------


def _interrupting(monkeypatch: pytest.MonkeyPatch, number: int, at: str) -> None:
    """Send this process a signal in the middle of the job in folder `at`."""
    real = job.replay

    def replay(source, engines, *rest, **named):
        if engines[0].recorder.steps.path.parent.name == at:
            os.kill(os.getpid(), number)
        return real(source, engines, *rest, **named)

    monkeypatch.setattr(job, "replay", replay)


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP))],
)
def test_a_signal_reports_what_is_finished(tmp_path, monkeypatch, number):
    _interrupting(monkeypatch, number, "1")
    done = command(tmp_path, "-m", *FAST, "allocator.block_size=4,8,16", "hydra.sweep.dir=sweep")
    assert done.code == 128 + number
    assert "Traceback" not in done.err
    table = pd.read_csv(tmp_path / "sweep" / "comparison.csv")
    assert table["status"].tolist() == ["finished", "interrupted", "not run"]
    assert (tmp_path / "sweep" / "REPORT.md").exists()
    assert not list(tmp_path.rglob(LOCK))


def test_a_signal_in_a_run_keeps_what_was_measured(tmp_path, monkeypatch):
    _interrupting(monkeypatch, signal.SIGTERM, "run")
    done = command(tmp_path, *FAST, "hydra.run.dir=run")
    assert done.code == 143
    assert str(tmp_path / "run") in done.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "run" / "requests.csv").exists()


def test_an_error_in_the_report_after_an_interrupt_is_no_traceback(tmp_path, monkeypatch):
    import harness.report

    def fail(*args, **kwargs):
        raise RuntimeError("no ink")

    _interrupting(monkeypatch, signal.SIGINT, "1")
    monkeypatch.setattr(harness.report, "report_sweep", fail)
    done = command(tmp_path, *SWEEP, "hydra.sweep.dir=sweep")
    assert done.code == 130
    assert "no ink" in done.err
    assert f"python -m harness report {tmp_path / 'sweep'}" in done.err
    assert "Traceback" not in done.err
    monkeypatch.undo()
    assert command(tmp_path, "report", "sweep").code == 1
