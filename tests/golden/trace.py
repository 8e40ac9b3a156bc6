"""Step traces of a real engine, and the same steps of ours.

A file holds the configuration and the arrivals in its first line, then a line per step: `scheduled` (request -> tokens,
in order), `preempted`, `tables` (block ids of each running request after scheduling), `finished` and `free` (the free
list, front first, after the step). The engine's block 0 is a null block, so its ids are those of `Paged` + 1.

With `groups` in its configuration a file is of a hybrid model: a table for each group, 0 where nothing is stored, and
besides `admitted` (hit tokens), `held` (blocks by group), `num_free` (after scheduling) and `copies` (source, target).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allocators.checker import Checked
from allocators.paged import Paged
from allocators.vllm_groups import Engine, Group, Spec
from allocators.vllm_hybrid import VllmHybrid
from allocators.vllm_pool import Geometry
from schedulers.request import Batch, Rejection, Request
from schedulers.reservation import on_demand
from schedulers.vllm_v1 import VllmV1

TOKENS = (0, 7)  # what the model always answers, of a uniform and of a hybrid one


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

    def __init__(self, trace: Trace, scheduler: type[VllmV1] = VllmV1, checked: bool = True) -> None:
        config = trace.config
        self.trace, self.hybrid = trace, "groups" in config
        self.pool: Any = hybrid_pool(config) if self.hybrid else uniform_pool(config)
        self.scheduler = scheduler(
            Checked(self.pool) if checked else self.pool, on_demand,
            max_model_len=config["max_len"], max_num_seqs=config["max_num_seqs"],
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
            more = self._more(batch, list(tables.values())) if self.hybrid else {}
            _, finished = self.scheduler.complete(batch, self._sampled(batch))
            yield {
                "step": number,
                "scheduled": [(self._name(s.request), n) for s, n in zip(batch.seqs, batch.counts, strict=True)],
                "preempted": sorted(self._name(seq.request) for seq in batch.preempted),
                "tables": tables,
                "finished": sorted(self._name(seq.request) for seq in finished),
                "free": [block + (not self.hybrid) for block in self.pool.pool.free_list()],
                **more,
            }
            number += 1

    def _deliver(self, step: int) -> None:
        for number, arrival in enumerate(self.trace.arrivals):
            if arrival["step"] == step:
                prompt = arrival["prompt"]
                rejection = self.scheduler.add(Request(number, step, len(prompt), arrival["output"], token_ids=prompt))
                self.rejected += [rejection] if rejection else []

    def _sampled(self, batch: Batch) -> list[int]:
        """One token for each request whose computed tokens equal its tokens after the step."""
        return [TOKENS[self.hybrid] for seq in batch.seqs if seq.stored == seq.num_tokens]

    def _name(self, request: Request) -> str:
        return self.names[request.id]

    def _blocks(self, row: int) -> list[Any]:
        if not self.hybrid:
            return [block + 1 for block in self.pool._blocks[row]]
        tables = self.pool._held_by[row].tables
        for group, table in enumerate(tables):  # what kernels see is the same
            assert [max(block, 0) for block in self.pool.group_tables[group][row, : len(table)].tolist()] == table
        return [list(table) for table in tables]

    def _more(self, batch: Batch, tables: list[list[list[int]]]) -> dict[str, Any]:
        """What only files of hybrid models say."""
        groups = range(len(self.pool.specs))
        unit = self.pool.grain
        copies = [[move.source // unit, move.target // unit] for move in batch.moves]
        counts = dict(zip(batch.seqs, batch.counts, strict=True))
        return {
            "admitted": {self._name(seq.request): seq.stored - counts[seq] for seq in batch.admitted},
            "held": [sum(block > 0 for table in tables for block in table[group]) for group in groups],
            "num_free": self.pool.pool.num_free,
            **({"copies": copies} if copies else {}),
        }


def uniform_pool(config: dict[str, Any]) -> Paged:
    size = config["block_size"]
    return Paged((config["num_blocks"] - 1) * size, config["max_len"], size, config["apc"])


def hybrid_pool(config: dict[str, Any]) -> VllmHybrid:
    """Of one layer a group, a byte for each token of the smallest block's layers."""
    groups, align = config.get("groups", [{"kind": "full"}]), config.get("mamba_mode") == "align"
    page, made = 840, []  # a multiple of all small block sizes
    for at, told in enumerate(groups):
        size = told.get("block_size", config["block_size"])
        if told["kind"] == "mamba":
            spec = Spec(
                "mamba", size if align else config["max_len"], state_bytes=page, align=align,
                checkpoints=told.get("checkpoint_blocks", 0), grid=told.get("checkpoint_alignment") or 0,
            )  # fmt: skip
        else:
            reach = told.get("window") or told.get("chunk") or 0
            spec = Spec(told["kind"], size, page // size, reach=reach, padded=page)
        made.append(Group(spec, (at,), spec.real, page, (page,)))
    engine = Engine(config["block_size"], config["max_len"], config["budget"], config["apc"],
                    match_unit=config.get("match_unit") or 0)  # fmt: skip
    return VllmHybrid(
        config["num_blocks"] * page, config["max_len"], enable_prefix_caching=config["apc"],
        retention_interval=config.get("retention", 0), geometry=Geometry(tuple(made), engine),
    )  # fmt: skip


def expected(step: dict[str, Any]) -> dict[str, Any]:
    """A step of the file in a form that compares as it should: the order of `scheduled` counts."""
    return step | {
        "scheduled": [tuple(item) for item in step["scheduled"].items()],
        "preempted": sorted(step["preempted"]),
        "finished": sorted(step["finished"]),
    }
