"""What launchers differ in: what they need before the first job, and what must be ended when a sweep is."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf, open_dict

from harness.errors import HarnessError
from harness.folders import holder, process_of
from harness.plan import Job

STOPPED = ".stopped"  # in a sweep's folder: no job of it begins any more
PATIENCE_S = 10  # for processes that were told to end
LOOK_S = 0.5


def prepare(launcher: Launcher, jobs: Sequence[Job]) -> None:
    """See that a launcher can run jobs, each with a GPU of its own if it needs one.

    Raises:
        HarnessError: it can't.
    """
    kinds = {_device(job) for job in jobs}
    name = type(launcher).__name__
    if name == "JoblibLauncher":
        _many_here(launcher.joblib, kinds)  # type: ignore[attr-defined]
    elif name == "SlurmLauncher" and "cuda" in kinds:
        params = launcher.params  # type: ignore[attr-defined]
        params["gpus_per_node"] = params.get("gpus_per_node") or 1
    elif name == "RayLauncher":
        _ray(launcher.ray_cfg, "cuda" in kinds)  # type: ignore[attr-defined]


def stop(launcher: Launcher, folder: Path, names: Sequence[str]) -> None:
    """End the jobs of a sweep that other processes run, or would begin later."""
    (folder / STOPPED).touch()
    if type(launcher).__name__ == "SlurmLauncher" and (scancel := shutil.which("scancel")):
        for number in {path.name.partition("_")[0] for path in (folder / ".submitit").glob("*")}:
            subprocess.run([scancel, number], capture_output=True, timeout=60, check=False)
    leave()
    deadline = time.monotonic() + PATIENCE_S
    told: set[int] = set()
    while time.monotonic() < deadline:
        held = [who for name in names if (who := holder(folder / name))]
        if not held:
            return
        for number, host in map(process_of, held):
            if host == socket.gethostname() and number not in {*told, os.getpid()}:
                told.add(number)
                with suppress(OSError):
                    os.kill(number, signal.SIGINT)
        time.sleep(0.05)


@contextmanager
def watched(folder: Path, names: Sequence[str]) -> Iterator[None]:
    """A bar of the jobs that are over while others run them; nothing where there is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress

    done = Event()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("jobs", total=len(names))

        def look() -> None:
            while not done.wait(LOOK_S):
                bar.update(task, completed=sum((folder / name / "summary.json").exists() for name in names))

        thread = Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _device(job: Job) -> str:
    config = job.config if isinstance(job.config, Mapping) else OmegaConf.to_container(job.cfg)
    return str(config["device"]["kind"])  # type: ignore[index,call-overload]


def _many_here(settings: Mapping[str, Any], kinds: set[str]) -> None:
    """Jobs side by side on one machine disturb each other where they measure."""
    if settings["n_jobs"] == 1:
        return
    if "cuda" in kinds:
        raise HarnessError("device=cuda: jobs side by side would share one GPU; set hydra.launcher.n_jobs=1, or take "
                           "hydra/launcher=ray, which hands out GPUs")  # fmt: skip
    if kinds - {"simulated"}:
        print("warning: jobs that measure run side by side on the same cores and slow each other down; "
              "hydra.launcher.n_jobs=1 runs them one after another", file=sys.stderr)  # fmt: skip


def _ray(settings: Any, gpu: bool) -> None:
    """Join or start Ray, and see that some node has what a job asks for, or gets it while we wait."""
    import ray

    if gpu and not settings.remote.get("num_gpus"):
        with open_dict(settings):
            settings.remote.num_gpus = 1
    asked = dict(settings.remote)
    needed = {"CPU": float(asked.get("num_cpus") or 0), "GPU": float(asked.get("num_gpus") or 0),
              "memory": float(asked.get("memory") or 0), **dict(asked.get("resources") or {})}  # fmt: skip
    if not ray.is_initialized():
        init: Any = OmegaConf.to_container(settings.init, resolve=True)
        try:
            ray.init(**{"log_to_driver": True, "configure_logging": True, "logging_level": "warning", **init})
        except (ConnectionError, ValueError) as error:
            raise HarnessError(f"hydra.launcher.ray.init: {error}") from error
    wait_s = float(settings.get("wait_s", 60))
    if not _comes_true(lambda: any(_has(node, needed) for node in ray.nodes()), wait_s):
        there = "; ".join(_said(node["Resources"]) for node in ray.nodes() if node["Alive"])
        leave()
        raise HarnessError(f"hydra.launcher.ray.remote: a job asks for {_said(needed)}, and for {wait_s:g} s "
                           f"(hydra.launcher.ray.wait_s) no node had that; there are: {there}")  # fmt: skip


def _comes_true(what: Callable[[], bool], wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while not (true := what()) and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return true


def _has(node: Mapping[str, Any], needed: Mapping[str, float]) -> bool:
    return bool(node["Alive"]) and all(node["Resources"].get(key, 0) >= value for key, value in needed.items())


def _said(resources: Mapping[str, float]) -> str:
    shown = {key: value for key, value in resources.items() if value and not key.startswith(("node:", "object_store"))}
    return ", ".join(f"{value / 2**30:.1f} GiB memory" if key == "memory" else f"{value:g} {key}"
                     for key, value in shown.items())  # fmt: skip


def leave() -> None:
    """Leave Ray, which ends what this process started there."""
    if "ray" in sys.modules:
        import ray

        if ray.is_initialized():
            ray.shutdown()
