"""Step traces of a real engine, and the same steps of ours.

A file holds the configuration and the arrivals in its first line, then a line per step: `scheduled` (request -> tokens,
in order), `preempted`, `tables` (block ids of each running request after scheduling), `finished` and `free` (the free
list, front first, after the step). The engine's block 0 is a null block, so its ids are ours + 1.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocators.checker import Checked
from allocators.paged import Paged
from schedulers.request import Batch, Rejection, Request
from schedulers.reservation import on_demand
from schedulers.vllm_v1 import VllmV1

TOKEN = 0  # what the model always answers


@dataclass
class Trace:
    """A file of steps."""

    path: Path
    config: dict[str, Any]
    arrivals: list[dict[str, Any]]
    stuck: bool
    steps: list[dict[str, Any]]


def read(path: Path) -> Trace:
    head, *steps = (json.loads(line) for line in path.read_text().splitlines() if line.strip())
    return Trace(path, head["config"], head["arrivals"], head.get("stuck", False), steps)


class Replay:
    """Our scheduler under the configuration of a trace, checked in every call."""

    def __init__(self, trace: Trace, scheduler: type[VllmV1] = VllmV1) -> None:
        config, size = trace.config, trace.config["block_size"]
        self.trace = trace
        self.pool = Paged((config["num_blocks"] - 1) * size, config["max_len"], size, config["apc"])
        self.scheduler = scheduler(
            Checked(self.pool), on_demand, max_model_len=config["max_len"], max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["budget"], chunked_prefill=config["chunked"], watermark=config["wm"],
            scheduler_reserve_full_isl=config["reserve"], long_prefill_token_threshold=config["long_thr"],
        )  # fmt: skip
        self.names = [arrival["id"] for arrival in trace.arrivals]
        self.rejected: list[Rejection] = []

    def steps(self) -> Iterator[dict[str, Any]]:
        """Our steps, in the words of the file, for ever."""
        number = 0
        while True:
            self._deliver(number)
            batch = self.scheduler.schedule(number)
            tables = {self._name(seq.request): self._blocks(seq.row) for seq in self.scheduler.running}
            _, finished = self.scheduler.complete(batch, self._sampled(batch))
            yield {
                "step": number,
                "scheduled": [(self._name(s.request), n) for s, n in zip(batch.seqs, batch.counts, strict=True)],
                "preempted": sorted(self._name(seq.request) for seq in batch.preempted),
                "tables": tables,
                "finished": sorted(self._name(seq.request) for seq in finished),
                "free": [block + 1 for block in self.pool.pool.free_list()],
            }
            number += 1

    def _deliver(self, step: int) -> None:
        for number, arrival in enumerate(self.trace.arrivals):
            if arrival["step"] == step:
                prompt = arrival["prompt"]
                rejection = self.scheduler.add(Request(number, step, len(prompt), arrival["output"], token_ids=prompt))
                self.rejected += [rejection] if rejection else []

    @staticmethod
    def _sampled(batch: Batch) -> list[int]:
        """One token for each request whose computed tokens equal its tokens after the step."""
        return [TOKEN for seq in batch.seqs if seq.stored == seq.num_tokens]

    def _name(self, request: Request) -> str:
        return self.names[request.id]

    def _blocks(self, row: int) -> list[int]:
        return [block + 1 for block in self.pool._blocks[row]]


def expected(step: dict[str, Any]) -> dict[str, Any]:
    """A step of the file in a form that compares as it should: the order of `scheduled` counts."""
    return step | {
        "scheduled": [tuple(item) for item in step["scheduled"].items()],
        "preempted": sorted(step["preempted"]),
        "finished": sorted(step["finished"]),
    }
