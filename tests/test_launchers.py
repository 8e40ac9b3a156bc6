"""A sweep whose jobs run elsewhere: side by side, on a cluster, through a queue; what dies there and what is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import harness.report
from harness.folders.owner import LOCK

from .command import FAST, command

ROOT = Path(__file__).resolve().parents[1]
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SLURM_LIKE = ("hydra/launcher=submitit_local",)
RAY = ("hydra/launcher=ray",)


def needs(package: str) -> pytest.MarkDecorator:
    found = subprocess.run([sys.executable, "-c", f"import importlib.util as u; exit(not u.find_spec('{package}'))"])
    return pytest.mark.skipif(found.returncode != 0, reason=f"{package} is not installed")


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'kernels'}:{ROOT / 'tests'}")
    monkeypatch.syspath_prepend(str(ROOT / "tests"))
    monkeypatch.setenv("DEADLY_MARK", str(tmp_path / "mark"))


def statuses(folder: Path) -> list[str]:
    return pd.read_csv(folder / "comparison.csv")["status"].tolist()


@needs("hydra_plugins.hydra_joblib_launcher")
def test_side_by_side_and_a_process_that_is_killed(tmp_path):
    """The one that is killed is run again; the tables are those of one process."""
    sweep = ("-m", *FAST, "allocator._target_=allocators.paged.Paged,deadly.DiesOnce")
    done = command(tmp_path, *sweep, *JOBLIB, "hydra.sweep.dir=many")
    assert done.code == 0, done.err
    assert (tmp_path / "mark").exists()
    assert command(tmp_path, *sweep, "hydra.sweep.dir=one").code == 0
    for name in ("comparison.csv", "0/requests.csv", "1/requests.csv", "1/steps.csv"):
        assert (tmp_path / "many" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    assert not list((tmp_path / "many").rglob(LOCK))


def test_a_launcher_that_is_not_installed_is_named(tmp_path, monkeypatch):
    from hydra.core.plugins import Plugins

    classes = Plugins.instance().class_name_to_class
    missing = {name: cls for name, cls in classes.items() if "joblib" not in name}
    monkeypatch.setattr(Plugins.instance(), "class_name_to_class", missing)
    done = command(tmp_path, "-m", *FAST, "seed=0,1", *JOBLIB, "hydra.sweep.dir=sweep")
    assert done.code == 2
    assert "pip install 'kvlab[joblib]'" in done.err


@needs("hydra_plugins.hydra_joblib_launcher")
def test_what_measures_is_not_run_side_by_side_unsaid(tmp_path):
    done = command(tmp_path, "-m", "device=cuda", "workload.num_requests=6", "seed=0,1", *JOBLIB, "hydra.sweep.dir=a")
    assert done.code == 2
    assert "hydra.launcher.n_jobs=1" in done.err
    assert not (tmp_path / "a").exists()


@pytest.mark.slow  # 40 s
@needs("hydra_plugins.hydra_joblib_launcher")
def test_a_job_that_always_dies_is_marked_and_the_others_go_on(tmp_path):
    targets = "allocator._target_=allocators.paged.Paged,deadly.Dies,deadly.Raises,allocators.paged.Paged"
    done = command(tmp_path, "-m", *FAST, targets, "repeat=0,1", *JOBLIB, "hydra.sweep.dir=sweep")
    assert done.code == 1
    assert statuses(tmp_path / "sweep") == ["finished"] * 2 + ["failed"] * 4 + ["finished"] * 2
    assert "its process died 2 times" in json.loads((tmp_path / "sweep" / "2" / "summary.json").read_text())["error"]


@pytest.mark.slow  # 20 s
@needs("hydra_plugins.hydra_submitit_launcher")
def test_through_a_queue(tmp_path):
    sweep = ("-m", *FAST, "allocator.block_size=16,3,8")
    done = command(tmp_path, *sweep, *SLURM_LIKE, "hydra.sweep.dir=sweep")
    assert done.code == 1
    assert statuses(tmp_path / "sweep") == ["finished", "failed", "finished"]


@pytest.mark.slow  # 20 s
@needs("hydra_plugins.hydra_submitit_launcher")
def test_a_queue_whose_job_is_killed(tmp_path):
    sweep = ("-m", *FAST, "allocator._target_=allocators.paged.Paged,deadly.DiesOnce,deadly.Dies")
    done = command(tmp_path, *sweep, *SLURM_LIKE, "hydra.sweep.dir=sweep")
    assert done.code == 1
    assert statuses(tmp_path / "sweep") == ["finished", "finished", "failed"]


def _begin(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "harness", *arguments, "hydra.sweep.dir=sweep"]
    listening = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)}
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
                            start_new_session=True, **listening)  # type: ignore[call-overload,no-any-return]  # fmt: skip


def _wait_for(folder: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + 200
    while len(list(folder.glob(pattern))) < count and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.slow  # 30 s each
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("launcher", [(), JOBLIB, SLURM_LIKE, RAY])
def test_signals_under_every_launcher(tmp_path, launcher, number):
    """Sent to the sweep's process alone, as `kill` does: what is finished is reported, and nothing goes on running."""
    slow = (
        "-m",
        "device=simulated",
        "workload.num_requests=150",
        "allocator._target_=allocators.paged.Paged,deadly.Slow",
    )
    process = _begin(tmp_path, *slow, "repeat=0,1", *launcher)
    _wait_for(tmp_path, "sweep/[01]/summary.json", 2)
    _wait_for(tmp_path, "sweep/2/steps.csv" if not launcher else "sweep/[23]/config.yaml", 1)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    found = statuses(tmp_path / "sweep")
    assert found[:2] == ["finished", "finished"]
    assert set(found[2:]) <= {"interrupted", "not run"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("[23]/*")}
    time.sleep(2)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep").glob("[23]/*")} == before


@pytest.mark.slow  # 40 s
@needs("hydra_plugins.hydra_joblib_launcher")
def test_kill_9_of_the_sweep_while_others_run_its_jobs(tmp_path):
    """Processes that outlive it finish what they are at or end; a resumed sweep waits for them, and nothing mixes."""
    slow = ("-m", "device=simulated", "workload.num_requests=40", "allocator._target_=deadly.Slow", "repeat=0,1,2,3")
    process = _begin(tmp_path, *slow, *JOBLIB)
    _wait_for(tmp_path, "sweep/*/config.yaml", 2)
    process.kill()
    process.wait()
    assert command(tmp_path, "resume", "sweep", *JOBLIB).code == 0
    assert statuses(tmp_path / "sweep") == ["finished"] * 4
    assert command(tmp_path, *slow, "hydra.sweep.dir=one").code == 0
    for job in "0123":
        for name in ("requests.csv", "steps.csv"):
            assert (tmp_path / "sweep" / job / name).read_bytes() == (tmp_path / "one" / job / name).read_bytes()


# ---- a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a real one on this machine: a head without a core for jobs, and two nodes."""
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    found = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [found.add_node(num_cpus=1, resources={"spare": 1}) for _ in range(2)]
    assert len(nodes) == 2
    yield f"hydra.launcher.ray.init.address='{found.address}'"
    found.shutdown()


@pytest.mark.slow  # 90 s for all four
@needs("hydra_plugins.hydra_ray_launcher")
def test_a_cluster_runs_a_sweep_and_a_killed_worker_s_job_again(tmp_path, cluster):
    sweep = ("-m", *FAST, "allocator._target_=allocators.paged.Paged,deadly.DiesOnce,deadly.Raises")
    done = command(tmp_path, *sweep, *RAY, cluster, "hydra.sweep.dir=sweep")
    assert done.code == 1
    assert statuses(tmp_path / "sweep") == ["finished", "finished", "failed"]
    assert (tmp_path / "mark").exists()


@pytest.mark.slow
@needs("hydra_plugins.hydra_ray_launcher")
def test_a_worker_that_dies_every_time_is_marked(tmp_path, cluster):
    sweep = (
        "-m",
        *FAST,
        "allocator._target_=deadly.Dies,allocators.paged.Paged",
        "hydra.launcher.ray.remote.max_retries=0",
    )
    done = command(tmp_path, *sweep, *RAY, cluster, "hydra.sweep.dir=sweep")
    assert done.code == 1
    assert statuses(tmp_path / "sweep") == ["failed", "finished"]


@pytest.mark.slow
@needs("hydra_plugins.hydra_ray_launcher")
@pytest.mark.parametrize("asked", ["num_cpus=8", "num_gpus=1", "resources={license: 1}"])
def test_a_job_that_asks_for_more_than_there_is_is_told_so(tmp_path, cluster, asked):
    begun = time.monotonic()
    done = command(tmp_path, "-m", *FAST, "seed=0,1", *RAY, cluster, f"+hydra.launcher.ray.remote.{asked}".replace(
        "+hydra.launcher.ray.remote.num_cpus", "hydra.launcher.ray.remote.num_cpus"), "hydra.launcher.ray.wait_s=2",
        "hydra.sweep.dir=sweep")  # fmt: skip
    assert done.code == 2
    assert "for 2 s" in done.err
    assert "1 CPU" in done.err
    assert not (tmp_path / "sweep").exists()
    assert time.monotonic() - begun < 60


@pytest.mark.slow
@needs("hydra_plugins.hydra_ray_launcher")
def test_a_job_for_a_gpu_asks_for_one(tmp_path, cluster):
    done = command(tmp_path, "-m", "device=cuda", "workload.num_requests=6", "seed=0,1", *RAY, cluster,
                   "hydra.launcher.ray.wait_s=1", "hydra.sweep.dir=sweep")  # fmt: skip
    assert done.code == 2
    assert "1 GPU" in done.err


@pytest.mark.slow
@needs("hydra_plugins.hydra_ray_launcher")
def test_a_cluster_that_loses_the_only_node_that_fits_is_not_waited_for_for_ever(tmp_path):
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    found = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    node = found.add_node(num_cpus=1)
    try:
        process = _begin(tmp_path, "-m", "device=simulated", "workload.num_requests=400", "repeat=0,1",
                         "allocator._target_=deadly.Slow", *RAY, "hydra.launcher.ray.wait_s=5",
                         f"hydra.launcher.ray.init.address='{found.address}'")  # fmt: skip
        _wait_for(tmp_path, "sweep/*/config.yaml", 1)
        found.remove_node(node)
        _, said = process.communicate(timeout=150)
    finally:
        found.shutdown()
    assert process.returncode == 1, said
    assert "for 5 s" in said
    assert set(statuses(tmp_path / "sweep")) <= {"interrupted", "not run"}


# ---- SLURM, as far as it goes without one --------------------------------------------------------------------------

STAND_INS = {
    "sbatch": """#!/usr/bin/env python3
import os, re, subprocess, sys
text = open(sys.argv[-1]).read()
print("Submitted batch job 42")
for task in range(1 + int(re.search(r"array=0-(\\d+)", text)[1])):
    slurm = {"JOB_ID": f"42_{task}", "ARRAY_JOB_ID": "42", "ARRAY_TASK_ID": str(task), "JOB_NUM_NODES": "1",
             "NTASKS": "1", "PROCID": "0", "LOCALID": "0", "NODEID": "0", "JOB_NODELIST": "here"}
    subprocess.Popen(["sh", sys.argv[-1]], env=os.environ | {f"SLURM_{key}": value for key, value in slurm.items()},
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
""",
    "srun": """#!/usr/bin/env python3
import os, sys
at = next(n for n, word in enumerate(sys.argv) if "python" in word and n)
os.execv(sys.argv[at], sys.argv[at:])
""",
    "sacct": "#!/bin/sh\necho 'JobID|State|NodeList'\n",
    "scontrol": "#!/bin/sh\necho here\n",
    "scancel": "#!/bin/sh\n",
}


@pytest.mark.slow  # 20 s
@needs("hydra_plugins.hydra_submitit_launcher")
def test_an_array_is_handed_to_slurm(tmp_path, monkeypatch):
    """With stand-ins for its commands: what is asked for, and that jobs of an array find their plan."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in STAND_INS.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    done = command(tmp_path, "-m", *FAST, "seed=0,1", "hydra/launcher=submitit_slurm", "hydra.launcher.partition=long",
                   "hydra.sweep.dir=sweep")  # fmt: skip
    assert done.code == 0, done.err
    assert statuses(tmp_path / "sweep") == ["finished", "finished"]
    batch = next((tmp_path / "sweep" / ".submitit").rglob("*.sh")).read_text()
    assert "--partition=long" in batch
    assert "--cpus-per-task=1" in batch
