"""A finished run is never lost: what may go wrong around it and after it costs neither its tables nor its report."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

import harness.report
from harness.console import surroundings
from harness.report.drawing import draw_all

from .command import FAST, command

ROOT = Path(__file__).resolve().parents[1]
LONGER = ("device=simulated", "workload.num_requests=40")


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# ---- where it runs -------------------------------------------------------------------------------------------------

HOSTILE = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYTHONIOENCODING": "ascii",
    "HOME": "/proc/no/such/home",
    "NUMBA_CACHE_DIR": "/proc/no/such/cache",
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
}


def process(folder: Path, *arguments: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, through a shell that may close or bend its streams."""
    words = [sys.executable, "-m", "harness", *arguments]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", **environment}
    return subprocess.run(["bash", "-c", f'"$@" {shell}', "sh", *words], cwd=folder, env=env, capture_output=True,
                          text=True, timeout=300)  # fmt: skip


def reported(folder: Path) -> bool:
    return {"comparison.csv", "REPORT.md", "figures"} <= files(folder) and any((folder / "figures").glob("*.png"))


def test_a_hostile_place_loses_nothing(tmp_path):
    """A notebook's backend, no letters but ASCII, a home that can't be written to and a closed standard error."""
    done = process(tmp_path, "-m", *FAST, "allocator.block_size=8,16", "hydra.sweep.dir=sweep",
                   shell="2>&-", **HOSTILE)  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert reported(tmp_path / "sweep")
    assert "warning" not in done.stdout
    assert "×" in (tmp_path / "sweep" / "REPORT.md").read_text(encoding="utf-8")
    assert "x1.00" in done.stdout


@pytest.mark.slow  # 4 s each
@pytest.mark.parametrize("shell", ["2>&-", ">&-", ">&- 2>&- <&-", "| true", ">/dev/full", "2>/dev/full"])
def test_streams_that_are_closed_full_or_gone(tmp_path, shell):
    done = process(tmp_path, "-m", *FAST, "allocator.block_size=8,16", "hydra.sweep.dir=sweep", shell=shell)
    assert done.returncode == 0
    assert reported(tmp_path / "sweep")
    assert "Traceback" not in done.stderr
    assert ("can't be written" in done.stderr) == (shell == ">/dev/full")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*HOSTILE, "none at all"])
def test_environments(tmp_path, name):
    words = (*FAST, "hydra.run.dir=run")
    if name == "none at all":
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
        done = subprocess.run([sys.executable, "-m", "harness", *words], cwd=tmp_path, env=env, capture_output=True)
    else:
        done = process(tmp_path, *words, **{name: HOSTILE[name]})
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "run" / "figures").glob("*.png"))


@pytest.mark.slow
def test_a_real_run_without_a_home_to_write_to(tmp_path):
    tiny = ("device=cpu", "workload.num_requests=3", "workload.fit=scale", "max_model_len=64", "kv_slots=256",
            "device.threads=1", "hydra.run.dir=run")  # fmt: skip
    done = process(tmp_path, *tiny, **HOSTILE)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "~").exists()


def test_kernels_compile_where_nothing_can_be_kept(monkeypatch):
    import numba
    from kvlab_kernels.cached import cached_njit
    from numba.core import caching

    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [caching.UserProvidedCacheLocator])
    monkeypatch.setenv("TMPDIR", "/proc/no/such")
    monkeypatch.setattr("tempfile.tempdir", None)
    assert cached_njit(nogil=True)(lambda x: x + 1)(2) == 3  # no cache at all

    def full(self, sig, data):
        raise OSError(28, "No space left on device")

    monkeypatch.undo()
    monkeypatch.setattr(caching.Cache, "save_overload", full)
    assert cached_njit(nogil=True)(_one_more)(2) == 3  # compiled when called
    assert cached_njit(numba.int64(numba.int64), nogil=True)(_one_more)(2) == 3  # compiled at once


def test_compiled_code_is_not_older_than_what_it_calls(tmp_path):
    head = "from kvlab_kernels.cached import cached_njit\n"
    callee = head + "@cached_njit()\ndef step(x):\n    return x + {}\n"
    caller = head + "import callee\nstep = callee.step\n@cached_njit(calls=callee)\ndef run(x):\n    return step(x)\n"
    (tmp_path / "caller.py").write_text(caller)
    for more in (1, 20):
        (tmp_path / "callee.py").write_text(callee.format(more))
        code = "import caller; print(caller.run(1))"
        printed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert int(printed.stdout) == 1 + more


def _one_more(x):
    return x + 1


class _Failing(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_stream_that_fails_is_given_up_and_said(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    stream = surroundings.RobustStream(_Failing(), "stdout")
    for _ in range(3):
        assert stream.write("text") == 4
    stream.flush()
    assert said.getvalue() == "warning: standard output can't be written: [Errno 28] No space left on device\n"


def test_letters_that_a_stream_lacks_are_replaced():
    raw = io.BytesIO()
    stream = surroundings.RobustStream(io.TextIOWrapper(raw, encoding="ascii"), "stdout")
    stream.write("×1.45 · 2 ≤ 3 … 漢")
    stream.flush()
    assert raw.getvalue() == b"x1.45 | 2 <= 3 ... ?"


# ---- a report that can't be made -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.report, "draw_all", lambda *args: [])
        assert command(folder, "-m", *FAST, "allocator.block_size=8,16", "hydra.sweep.dir=sweep").code == 0
    return folder / "sweep"


@pytest.mark.parametrize(
    "part",
    [
        "print_table",
        "draw",
        *(pytest.param(part, marks=pytest.mark.slow) for part in ("ideal.join", "two_by_two", "markdown.report_text")),
    ],
)
def test_a_part_of_the_report_that_fails_costs_the_others_nothing(swept, monkeypatch, part):
    def fail(*args, **kwargs):
        raise RuntimeError("no ink")

    place = {"print_table": "table.print_table", "two_by_two": "two_by_two.two_by_two",
             "draw": "throughput_latency.draw"}.get(part, part)  # fmt: skip
    monkeypatch.setattr(f"harness.report.{place}", fail)
    if part != "draw":
        monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])
    (swept / "comparison.csv").unlink()
    done = command(swept.parent, "report", "sweep")
    assert done.code == 0
    assert "RuntimeError: no ink" in done.out
    assert pd.read_csv(swept / "comparison.csv")["status"].tolist() == ["finished", "finished"]


def test_nothing_can_be_drawn_and_the_tables_are_there(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    warnings: list[str] = []
    assert draw_all(tmp_path, {"one": lambda: None}, warnings) == []
    assert "matplotlib" in warnings[0]


def test_labels_that_look_like_formulas_or_markup_are_shown_as_they_are(tmp_path):
    done = command(tmp_path, "-m", *FAST, "label='$x^{$ [/red] _a_','[bold]b :smile:'", "hydra.sweep.dir=sweep")
    assert done.code == 0
    assert "warning" not in done.out
    for label in ("$x^{$ [/red] _a_", "[bold]b :smile:"):
        assert label in " ".join(done.out.split())


def test_a_summary_with_words_where_numbers_belong_costs_its_row_only(swept, tmp_path, monkeypatch):
    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])
    path = swept / "1" / "summary.json"
    kept = path.read_text()
    path.write_text(json.dumps(json.loads(kept) | {"output_throughput": "fast", "e2e_mean_ms": [1]}))
    done = command(swept.parent, "report", "sweep")
    path.write_text(kept)
    assert done.code == 1
    assert pd.read_csv(swept / "comparison.csv")["status"].tolist() == ["finished", "interrupted"]


# ---- a full disk ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def no_file_above(size: int) -> Iterator[None]:
    """A disk that is full once a file has so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_during_the_steps_keeps_what_was_measured(tmp_path):
    with no_file_above(20_000):
        done = command(tmp_path, *LONGER, "hydra.run.dir=run")
    assert done.code == 1
    assert f"{tmp_path / 'run' / 'steps.csv'}" in done.err
    whole = command(tmp_path, *LONGER, "hydra.run.dir=whole")
    assert whole.code == 0
    for name in ("requests.csv", "workload.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    full, right = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "whole"))
    assert (full["status"], right["status"]) == ("failed", "finished")
    assert full["output_throughput"] == right["output_throughput"]


def test_a_disk_that_is_full_at_the_summary_says_it_instead(tmp_path):
    with no_file_above(1_500):
        done = command(tmp_path, "-m", *FAST, "allocator.block_size=8,16", "hydra.sweep.dir=sweep")
    assert done.code == 2  # nothing was planned
    assert str(tmp_path / "sweep" / "plan.json") in done.err
    assert not (tmp_path / "sweep").exists()
    with no_file_above(2_500):
        done = command(tmp_path, *FAST, "hydra.run.dir=run")
    assert done.code == 1
    assert "summary.json can't be written" in done.err
    said = json.loads(done.err[done.err.index("{") : done.err.index("\nerror:")])
    assert said["finished"] == 6
    assert "summary.json" not in files(tmp_path / "run")
    assert command(tmp_path, "report", "run").code == 2


def test_a_disk_that_is_full_at_the_report_prints_it(swept, monkeypatch):
    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])
    before = {path: path.read_bytes() for path in swept.rglob("*") if path.is_file()}
    with no_file_above(200):
        done = command(swept.parent, "report", "sweep")
    assert done.code == 2
    assert "sweep/comparison.csv" in done.err
    assert "paged" in done.out
    assert {path: path.read_bytes() for path in swept.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_figure_that_the_disk_has_no_room_for_is_a_warning(swept):
    with no_file_above(30_000):
        done = command(swept.parent, "report", "sweep")
    assert done.code == 0
    assert "warning: figure throughput_latency: OSError" in done.out
    assert not list((swept / "figures").glob(".*"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("size", ["40k", "80k", "120k", "160k", "240k"])
def test_a_small_file_system(tmp_path, size):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk]).returncode:
        pytest.skip("mounting is not allowed")
    try:
        done = command(tmp_path, "-m", *LONGER, "allocator.block_size=8,16,32", "hydra.sweep.dir=disk/sweep")
        assert done.code in (1, 2)
        assert "No space left on device" in done.err + done.out
        assert "Traceback" not in done.err
        again = command(tmp_path, "report", "disk/sweep")
        assert "Traceback" not in again.err
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_read_only_folder_of_results(swept, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "--bind", "-o", "ro", swept, disk]).returncode:
        pytest.skip("mounting is not allowed")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", disk], check=True)
        done = command(tmp_path, "report", "disk")
        assert done.code == 2
        assert "Read-only file system" in done.err
        assert "paged" in done.out
        for key in ("hydra.run.dir=disk/new", "hydra.sweep.dir=disk/new"):
            done = command(tmp_path, *FAST, *(["-m"] if "sweep" in key else []), key)
            assert done.code == 2
            assert "disk/new" in done.err
            assert key.partition("=")[0] in done.err
    finally:
        subprocess.run(["umount", disk], check=True)
