"""Plays a case and says what of it does not hold: step by step with the checker, and with steps taken together."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from omegaconf import DictConfig

from harness.errors import HarnessError
from harness.metrics.steps import AT, BOOKS
from harness.replay.engine import StalledError
from harness.runner.latency.roofline import Roofline
from tests.conformance.jumps import LATENCIES, assert_same, simulate
from tests.latency.models import TINY

from .cases import Case

MODELS = LATENCIES | {"roofline": lambda: Roofline("l4", TINY, step_overhead_us=0.1, sequence_overhead_us=0.01)}
PATIENCE_S = 30  # a tiny trace takes milliseconds


@dataclass
class Outcome:
    """What became of a case.

    Attributes:
        kind: served, refused (a declared error), or failed.
        said: the error; of a failure, the place where it was raised too.
        events: how often what happened (finished, rejected, preemptions, …), to see what the cases reach.
    """

    kind: str
    said: str = ""
    trace: str = ""
    events: Counter[str] = field(default_factory=Counter)

    @property
    def like(self) -> str:
        """The same for failures of one kind, whatever the numbers in them."""
        return re.sub(r"-?\d+(\.\d+)?", "#", self.said)


class HangError(Exception):
    pass


def examine(case: Case) -> Outcome:
    """Play a case both ways."""
    try:
        with in_time():
            cfg = case.settled()
            exact, jumps = play(case, cfg, True), play(case, cfg, False)
            _must_hold(case, exact)
            events = _events(exact, jumps)
            assert_same(exact, jumps)
    except StalledError as error:  # it is declared, but none of ours may stall
        return _failed(error)
    except HarnessError as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return _failed(error)
    return Outcome("served", events=events)


def play(case: Case, cfg: DictConfig, exact: bool) -> dict[str, Any]:
    """What `tests.conformance.jumps.simulate` gives of it, and the allocator as it was left.

    Args:
        exact: step by step, every call of the allocator checked.
    """
    cfg.debug = exact
    scheduler = case.scheduler(cfg)
    depth = 2 if cfg.simulation.async_scheduling else 1
    concurrency = case.get("concurrency")
    found = simulate(scheduler, case.requests(), MODELS[case.get("latency", "fitted")](), exact,
                     int(concurrency) if concurrency else None, depth)  # fmt: skip
    return found | {"scheduler": scheduler}


def digest(case: Case) -> str:
    """Of all that a case gives with steps taken together, for those who run the same code otherwise."""
    try:
        with in_time():
            found = play(case, case.settled(), False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    told = hashlib.sha256(np.ascontiguousarray(found["steps"]).tobytes())
    for part in (found["table"].to_csv(), json.dumps(found["summary"], default=str), sorted(found["gaps"].items())):
        told.update(str(part).encode())
    return told.hexdigest()[:16]


def _must_hold(case: Case, found: dict[str, Any]) -> None:
    """What no configuration may change, beside what the checker and the engine assert in each step."""
    table, steps, scheduler = found["table"], found["steps"], found["scheduler"]
    pool = scheduler.allocator
    served = table[table["status"] == "finished"].set_index("id")
    assert len(table) == len(case.rows), "a request is missing from the table"
    assert table["status"].isin(["finished", "rejected"]).all(), "a request is neither finished nor rejected"
    assert not scheduler.num_requests, "somebody is left behind"
    for number, request in enumerate(case.requests()):
        if number in served.index:
            right = request.n * min(request.output_len, scheduler.max_model_len - request.prompt_len)
            assert served.at[number, "output_tokens"] == right, f"request {number} has not the tokens it wanted"
    columns = ["arrival_s", "first_scheduled_s", "first_token_s", "last_token_s"]
    assert (served[columns].diff(axis=1).iloc[:, 1:] >= 0).all(axis=None), "times run backwards"
    if len(steps):
        assert steps[:, AT["produced"]].sum() == served["output_tokens"].sum(), "tokens of steps and of requests differ"
        books = steps[:, BOOKS].sum(axis=1) + steps[:, len(AT) : len(AT) + 3].sum(axis=1) * pool._by_layer
        assert (books == pool.total).all(), "the books of a step do not sum to the pool"
    left = pool.memory()
    assert left.used == left.reserved == left.over_reserved == left.rounding == left.finished_held == 0, (
        f"slots are held when all is over: {left}"
    )


def _events(exact: dict[str, Any], jumps: dict[str, Any]) -> Counter[str]:
    steps, table = exact["steps"], exact["table"]
    told = Counter({status: int(count) for status, count in table["status"].value_counts().items()})
    told["steps"], told["foretold"] = len(steps), jumps["foretold"]
    for name in ("preempted", "copied", "swapped", "saved", "head_blocked"):
        told[name] = int(steps[:, AT[name]].sum()) if len(steps) else 0
    told["cached tokens"] = int(table["cached_tokens"].sum())
    return told


def _failed(error: Exception) -> Outcome:
    place = next((frame for frame in reversed(traceback.extract_tb(error.__traceback__))), None)
    where = f" ({place.filename.rpartition('/')[2]}, {place.name})" if place else ""
    return Outcome("failed", f"{type(error).__name__}{where}: {error}", traceback.format_exc())


@contextmanager
def in_time() -> Iterator[None]:
    def hang(number: int, frame: Any) -> None:
        raise HangError(f"not over after {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
