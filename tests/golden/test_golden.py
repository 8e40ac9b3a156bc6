"""`VllmV1` over `Paged` or `VllmHybrid` takes the engine's steps. Any folder: `pytest tests/golden --golden-dir DIR`.

Compared are, in every step: the scheduled tokens in order, the preempted and the finished set, the block tables of all
running requests, and the whole free list; of a hybrid model also hits, blocks held by group, and copies. Without
`--golden-dir` the traces beside this file are replayed, and those of `shared/golden` and `shared/golden_hybrid` beside
the checkout where those exist.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from schedulers.request import Request
from schedulers.vllm_v1 import VllmV1
from tests.golden.trace import Replay, expected, read

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared"


class Unrefusing(VllmV1):
    """Takes what can never be served, as the engine does."""

    def unservable(self, request: Request) -> str | None:
        return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = metafunc.config.getoption("golden_dir") or [HERE, SHARED / "golden", SHARED / "golden_hybrid"]
    files = [file for folder in folders for file in sorted(folder.rglob("*.jsonl"))]
    if not files:
        raise pytest.UsageError(f"no step traces (*.jsonl) in {', '.join(map(str, folders))}")
    stuck = {"test_a_request_that_can_never_be_served_is_refused": True, "test_every_step_is_the_engines": False}
    wanted = stuck.get(metafunc.function.__name__)
    chosen = [file for file in files if wanted is None or read(file).stuck == wanted]
    metafunc.parametrize("file", chosen, ids=[f"{file.parent.name}-{file.stem}" for file in chosen])


def replay(file: Path, scheduler: type[VllmV1]) -> Replay:
    """Every step of a file, compared."""
    trace = read(file)
    ours = Replay(trace, scheduler)
    for theirs, step in zip(trace.steps, ours.steps(), strict=False):
        assert step == expected(theirs)
    return ours


def test_every_step_is_the_engines(file: Path) -> None:
    assert not replay(file, VllmV1).rejected


def test_every_step_is_the_engines_as_long_as_nothing_is_refused(file: Path) -> None:
    """The engine's endless empty steps are ours too, if nobody looks whether a request can ever be served."""
    replay(file, Unrefusing)


def test_a_request_that_can_never_be_served_is_refused(file: Path) -> None:
    """With a reason, when it arrives; and all others are served."""
    trace = read(file)
    ours = Replay(trace)
    last = max(arrival["step"] for arrival in trace.arrivals)
    left = len(trace.arrivals)
    for number, step in enumerate(ours.steps()):
        left -= len(step["finished"])
        if number >= last and not ours.scheduler.running and not ours.scheduler.waiting:
            break
        assert number < 10_000
    assert left == len(ours.rejected) > 0
    assert all("never fit" in rejection.reason for rejection in ours.rejected)
