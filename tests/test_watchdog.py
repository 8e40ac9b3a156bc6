"""A plug-in that loops is named, its job fails, and the sweep goes on; what takes long for another reason may."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd
import pytest

import harness.report
from harness.job.watchdog import PluginTimeoutError, watchdog
from schedulers.continuous import Continuous

from .command import FAST, command
from .deadly import Hangs
from .test_launchers import JOBLIB, needs

IMPATIENT = ("-m", *FAST, "patience_s=0.4")


class Circles(Continuous):
    """Asks the pool again and again, as if it could change meanwhile."""

    def schedule(self, now):
        while self.allocator.free_slots >= 0:
            pass


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])


def error_of(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["error"])


def test_a_plug_in_that_loops_is_named_and_the_sweep_goes_on(tmp_path):
    done = command(tmp_path, *IMPATIENT, "allocator._target_=tests.deadly.Hangs,allocators.paged.Paged",
                   "scheduler._target_=schedulers.continuous.Continuous,tests.test_watchdog.Circles",
                   "hydra.sweep.dir=sweep")  # fmt: skip
    assert done.code == 1
    table = pd.read_csv(tmp_path / "sweep" / "comparison.csv")
    assert table["status"].tolist() == ["failed", "failed", "finished", "failed"]
    assert "patience_s=0.4: Continuous.schedule → " in error_of(tmp_path / "sweep" / "0")
    assert "Hangs.place (deadly.py, line " in error_of(tmp_path / "sweep" / "0")
    assert "Circles.schedule" in error_of(tmp_path / "sweep" / "3")
    assert "Circles.schedule" in done.err


@pytest.mark.slow  # 8 s
@needs("hydra_plugins.hydra_joblib_launcher")
def test_in_another_process_too(tmp_path):
    done = command(tmp_path, *IMPATIENT, "allocator._target_=tests.deadly.Hangs,allocators.paged.Paged", *JOBLIB,
                   "hydra.sweep.dir=sweep")  # fmt: skip
    assert done.code == 1
    assert "Hangs.place" in error_of(tmp_path / "sweep" / "0")
    assert pd.read_csv(tmp_path / "sweep" / "comparison.csv")["status"].tolist() == ["failed", "finished"]


def test_what_is_no_call_of_a_plug_in_may_take_as_long_as_it_likes():
    with watchdog(0.04):
        time.sleep(0.3)


def test_many_short_calls_are_no_long_one():
    pool = Hangs(16, 16)
    with watchdog(0.04):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pool.memory(None)


def test_it_is_raised_again_where_a_plug_in_swallows_it():
    swallowed = []

    class Stubborn(Hangs):
        def place(self, holder, tokens):
            while len(swallowed) < 3:
                try:
                    super().place(holder, tokens)
                except PluginTimeoutError as error:
                    swallowed.append(str(error))

    with watchdog(0.04):
        Stubborn(16, 16).place(None, 1)
    assert len(swallowed) == 3
    assert all("Stubborn.place → Hangs.place" in said for said in swallowed)


def test_null_waits_for_ever():
    with watchdog(None):
        time.sleep(0.01)
