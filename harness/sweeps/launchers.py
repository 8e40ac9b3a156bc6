"""What launchers differ in: what they need before the first job, and what must be ended when a sweep is."""

from __future__ import annotations

import _thread
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf, open_dict

from harness.devices import SIMULATED
from harness.errors import HarnessError
from harness.folders.owner import lock_owner, process_of
from harness.folders.plan import Job

STOPPED = ".stopped"  # in a sweep's folder: no job of it begins any more
PATIENCE_S = 4.0  # for processes that were told to end; after that they are killed
LOOK_S = 0.5


def prepare(launcher: Launcher, jobs: Sequence[Job]) -> None:
    """See that a launcher can run jobs, each with a GPU of its own if it needs one.

    Raises:
        HarnessError: it can't.
    """
    gpu = any(_device(job) == "cuda" for job in jobs)
    if _kind(launcher) == "JoblibLauncher":
        _many_here(launcher.joblib, gpu, any(_device(job) not in SIMULATED for job in jobs))  # type: ignore[attr-defined]
    elif _kind(launcher) == "SlurmLauncher" and gpu:
        params = launcher.params  # type: ignore[attr-defined]
        params["gpus_per_node"] = params.get("gpus_per_node") or 1
    elif _kind(launcher) == "RayLauncher":
        _ray(launcher.ray_cfg, gpu)  # type: ignore[attr-defined]


def stop(launcher: Launcher, folder: Path, names: Sequence[str]) -> None:
    """End the jobs of a sweep that other processes run, or would begin later."""
    (folder / STOPPED).touch()
    if _kind(launcher) == "SlurmLauncher" and (scancel := shutil.which("scancel")):
        for array in {path.name.partition("_")[0] for path in (folder / ".submitit").glob("*")}:
            subprocess.run([scancel, array], capture_output=True, timeout=60, check=False)
    leave()
    begun, told = time.monotonic(), set[tuple[int, int]]()
    while time.monotonic() < begun + 2 * PATIENCE_S:
        held = [process_of(who) for name in names if (who := lock_owner(folder / name))]
        if not held:
            return
        kind = signal.SIGINT if time.monotonic() < begun + PATIENCE_S else signal.SIGKILL
        for number, host in filter(None, held):
            if host == socket.gethostname() and number != os.getpid() and (number, kind) not in told:
                told.add((number, kind))
                with suppress(OSError):
                    os.kill(number, kind)
        time.sleep(0.05)


class Watch:
    """Looks after jobs that others run: how many are over (on a terminal), and whether the rest can ever run.

    Attributes:
        trouble: why not; the main thread was interrupted then.
    """

    def __init__(self, launcher: Launcher, folder: Path, names: Sequence[str]) -> None:
        self.trouble: str | None = None
        self._ray = launcher.ray_cfg if _kind(launcher) == "RayLauncher" else None  # type: ignore[attr-defined]
        self._summaries = [folder / name / "summary.json" for name in names]
        self._done = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        if self._ray is not None or sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        since = time.monotonic()
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("jobs", total=len(self._summaries))
            while not self._done.wait(LOOK_S):
                if not bar.disable:
                    bar.update(task, completed=sum(path.exists() for path in self._summaries))
                if self._ray is None or not (lacking := _lacking(self._ray)):
                    since = time.monotonic()
                elif time.monotonic() > since + self._ray.wait_s:
                    self.trouble = lacking
                    _thread.interrupt_main()
                    return


def _kind(launcher: Launcher) -> str:
    return type(launcher).__name__


def _device(job: Job) -> str:
    config = job.config if isinstance(job.config, Mapping) else job.cfg
    return str((config.get("device") or {}).get("kind"))


def _many_here(settings: Mapping[str, Any], gpu: bool, measured: bool) -> None:
    """Jobs side by side on one machine disturb each other where they measure."""
    if settings["n_jobs"] == 1:
        return
    if gpu:
        raise HarnessError("device=cuda: jobs side by side would share one GPU; set hydra.launcher.n_jobs=1, or take "
                           "hydra/launcher=ray, which hands out GPUs")  # fmt: skip
    if measured:
        print("warning: jobs that measure run side by side on the same cores and slow each other down; "
              "hydra.launcher.n_jobs=1 runs them one after another", file=sys.stderr)  # fmt: skip


def _ray(settings: Any, gpu: bool) -> None:
    """Join or start Ray, and see that some node has what a job asks for, or gets it while we wait."""
    import ray

    with open_dict(settings):
        settings.wait_s = float(settings.get("wait_s", 60))
        if gpu and not settings.remote.get("num_gpus"):
            settings.remote.num_gpus = 1
    if not ray.is_initialized():
        init: Any = OmegaConf.to_container(settings.init, resolve=True)
        ours = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(**{"logging_level": "warning", **init})
        except (ConnectionError, ValueError) as error:
            raise HarnessError(f"hydra.launcher.ray.init: {error}") from error
        signal.signal(signal.SIGTERM, ours)  # Ray takes it, to end the program without a report
    deadline = time.monotonic() + settings.wait_s
    while lacking := _lacking(settings):
        if time.monotonic() > deadline:
            leave()
            raise HarnessError(lacking)
        time.sleep(LOOK_S)


def _lacking(settings: Any) -> str:
    """What a job asks for that no node of the cluster has; empty = some node has it."""
    import ray

    asked = settings.remote
    needed = {"CPU": float(asked.get("num_cpus") or 0), "GPU": float(asked.get("num_gpus") or 0),
              "memory": float(asked.get("memory") or 0), **(asked.get("resources") or {})}  # fmt: skip
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []
    if any(all(node.get(key, 0) >= value for key, value in needed.items()) for node in nodes):
        return ""
    there = "; ".join(_said(node) or "nothing" for node in nodes) or "none"
    return (f"hydra.launcher.ray.remote: a job asks for {_said(needed)}, and for {settings.wait_s:g} s "
            f"(hydra.launcher.ray.wait_s) no node had that; the nodes have: {there}")  # fmt: skip


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
