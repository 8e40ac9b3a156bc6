"""Every row of the group `scheduler` is a scheduler that takes its keys, and serves."""

from __future__ import annotations

import re

import pytest

from harness.errors import HarnessError
from harness.groups import options
from harness.job.build import build_scheduler
from harness.naming.labels import label
from harness.tasks.claims import EXPERIMENTS, composed
from schedulers.request import Request
from tests.conformance.scheduler import serve

NAMES = options(EXPERIMENTS / "scheduler")


@pytest.mark.parametrize("name", NAMES)
def test_it_knows_every_key_and_serves(name: str) -> None:
    cfg = composed([f"scheduler={name}", "max_model_len=100"])
    asked = {f"scheduler.{key}" for key in cfg.scheduler}  # as if given on the command line: an unknown one is an error
    scheduler = build_scheduler(cfg, 320, asked - {"scheduler._target_"})
    served = serve(scheduler, [Request(i, 7 * i, 5 + i, 30 - i) for i in range(20)])
    assert len(served.finished) == 20


def test_no_two_rows_have_the_same_label() -> None:
    labels = [label(composed([f"scheduler={name}"])) for name in NAMES]
    assert len(set(labels)) == len(NAMES)


def test_a_label_says_what_was_changed_on_the_command_line() -> None:
    keys = ["scheduler.policy=shortest_first", "scheduler.length_predictor=noisy:0.5"]
    assert label(composed(keys)) == "continuous shortest_first(noisy:0.5) + paged(on_demand)"
    assert label(composed(["scheduler=shortest_first", "scheduler.policy=fcfs"])) == "vLLM"
    assert label(composed(["scheduler=sarathi", "scheduler.chunked_prefill=false"])) == "vLLM"
    assert label(composed(["scheduler.length_predictor=history"])) == "vLLM"  # nobody asks it


def test_an_order_of_ones_own_is_named_by_its_class() -> None:
    cfg = composed(["scheduler.policy={_target_: tests.schedulers.test_orders.Aging}"])
    assert type(build_scheduler(cfg, 320).order).__name__ == "Aging"
    assert label(cfg) == "continuous tests.schedulers.test_orders.Aging + paged(on_demand)"


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ("{_target_: schedulers.orders.ShortestFrist}", "has no 'ShortestFrist'; did you mean ShortestFirst"),
        ("{_target_: no_such_module.Mine}", "module 'no_such_module' can't be imported"),
        ("{_target_: schedulers.orders.Priority, step: 3}", "scheduler.policy: Priority refuses its arguments"),
        ("{_target_: collections.deque}", "scheduler.policy must be one of fcfs, "),
        ("shortest", "scheduler.policy must be one of fcfs, "),
    ],
)
def test_an_order_that_can_not_be_is_named_with_what_is_wrong(policy: str, answer: str) -> None:
    with pytest.raises(HarnessError, match=re.escape(answer)):
        build_scheduler(composed([f"scheduler.policy={policy}"]), 320)
