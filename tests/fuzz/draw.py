"""Draws cases: every allocator, reservation, scheduler and layout, under limits that are tight."""

from __future__ import annotations

import random

from harness.groups import options
from harness.installation import EXPERIMENTS

from .cases import LAYOUTS, Case, Row, keys_of

VALUES: dict[str, list[object]] = {  # of keys that an allocator or a scheduler may have; all that it has is drawn
    "block_size": [1, 2, 4, 16], "enable_prefix_caching": ["true", "false"], "freed_blocks": ["front", "back"],
    "host_slots": [0, 40, 200], "fit": ["slab", "first_fit", "best_fit"], "lane_slots": ["null", 7, 20, 60],
    "compaction": ["never", "on_refusal"], "growth": [0, 1, 3, 16], "page_size": [1, 1, 4],
    "page_tokens": [1, 3, 8], "map_us": [0, 1.7], "background": ["true", "false"], "deferred": ["true", "false"],
    "max_num_seqs": [1, 2, 3, 5, 8, 16], "max_num_batched_tokens": [8, 30, 100], "chunked_prefill": ["true", "false"],
    "watermark": [0.0, 0.01, 0.3], "preemption": ["recompute", "swap"], "prefill_first": ["true", "false"],
    "policy": ["fcfs", "fcfs", "priority", "shortest_first", "longest_prefix", "earliest_deadline"],
    "length_predictor": ["oracle", "history", "noisy:0.5"], "promise": ["max_tokens", "exact", "pow2", "max_model_len"],
    "reserved": [0.0, 0.03, 0.2], "samples": [1, 5], "window": [1, 3, 1000], "initial_output_len": [1, 16, 512],
    "max_wait_s": [0.0, 3e-6], "compute_finished": ["true", "false"], "bucket_by": ["prompt", "output"],
    "long_prefill_token_threshold": [0, 3], "scheduler_reserve_full_isl": ["true", "false"],
    "version": ["0.33", "0.19"], "placement": ["slab", "first_fit", "best_fit", "buddy"],
    "piece_tokens": [8, 30, 100, 2560], "window_ratio": [0.1, 0.5, 0.8, 1.0], "state_ratio": [0.3, 0.9],
    "retention_interval": [0, 4, 32, "null"], "hybrid": ["true", "true", "false"], "export_states": ["true", "false"],
    "match_unit": [0, 0, 0, 2],
}  # fmt: skip
VARIANTS = ("best_fit", "first_fit", "first_fit_compacting", "first_fit_growing", "paged_cached")  # drawn by their keys
NO_PROMISE = ("dual_pool", "jenga", "radix", "vllm_hybrid")
BY_LAYER = ("dual_pool", "jenga", "split", "vllm_hybrid")  # that know layouts: half of their cases have one
LATENCIES = ("fitted", "fitted", "constant", "roofline")
GAPS = ((0,), (0, 700, 3_000), (0, 700, 5_000, 100_000))  # ns; a step takes some 1,000


def members(group: str) -> list[str]:
    return options(EXPERIMENTS / group)


def draw(seed: int, number: int) -> Case:
    """Case `number` of a run; the same whoever asks, and whatever else is drawn."""
    r = random.Random(f"{seed} {number}")
    allocators = [name for name in members("allocator") if name not in VARIANTS]
    keys: dict[str, object] = {"allocator": r.choice(["paged", *allocators])}
    keys["scheduler"] = r.choice(members("scheduler"))
    longest = r.randint(2, 60)
    slots = r.choice([r.randint(longest, 2 * longest), r.randint(longest, 4 * longest), r.randint(4, 200)])
    keys |= {"kv_slots": slots, "max_model_len": longest, "seed": r.randint(0, 3)}
    for group in ("allocator", "scheduler"):
        for key in keys_of(group, str(keys[group])):
            if key in VALUES and r.random() < 0.7:
                keys[f"{group}.{key}"] = r.choice(VALUES[key])
    keys["reservation"] = r.choice([*["on_demand"] * 4, *members("reservation")])
    if keys["scheduler"] == "vllm_v1" and r.random() < 0.4:
        keys["simulation.async_scheduling"] = "true"
    if r.random() < (0.6 if keys["allocator"] in BY_LAYER else 0.25):
        keys["layout"] = r.choice(sorted(LAYOUTS))
    keys["latency"] = r.choice(LATENCIES)
    if r.random() < 0.3:
        keys["concurrency"] = r.randint(1, 4)
    _agree(keys, r)
    return Case(tuple((key, str(value)) for key, value in keys.items()), _rows(r, longest))


def _agree(keys: dict[str, object], r: random.Random) -> None:
    """Most of what is refused for sure says nothing new each time: make nine in ten agree."""
    if r.random() < 0.1:
        return
    if keys.get("scheduler.chunked_prefill", "false") == "false" and keys.get("scheduler.max_num_batched_tokens") == 8:
        keys["scheduler.max_num_batched_tokens"] = 100
    slab = keys.get("allocator.fit", "slab") == "slab"
    if keys["allocator"] == "contiguous" and slab:
        keys.pop("allocator.growth", None)
        keys.pop("allocator.compaction", None)
    grows = keys["allocator"] not in ("buddy", "contiguous", "split") or keys.get("allocator.growth", 0) != 0
    if keys["reservation"] == "on_demand" and not grows:
        keys["reservation"] = r.choice(["exact", "pow2", "max_tokens", "max_model_len"])
    if keys["allocator"] in NO_PROMISE:
        keys["reservation"] = "on_demand"
    if keys["allocator"] == "split":  # a ring has room for a step's tokens
        keys["allocator.piece_tokens"] = r.choice([100, 2560])
        keys["scheduler.max_num_batched_tokens"] = r.choice([30, 100])
    if "preemption" in keys_of("scheduler", str(keys["scheduler"])):
        swaps = keys["allocator"] == "paged" and r.random() < 0.8
        keys["scheduler.preemption"] = "swap" if swaps else "recompute"
        if swaps:
            keys["allocator.host_slots"] = r.choice([40, 200])


def _rows(r: random.Random, longest: int) -> tuple[Row, ...]:
    """Up to 14 requests, some at once and some far apart, some of which can never be served."""
    most, now, rows, gaps = longest // 2 + 1, 0, [], r.choice(GAPS)
    prompts = r.choice((most, most, max(most // 4, 1)))  # short prompts with long answers outgrow a pool together
    for _ in range(r.randint(2, 14)):
        now += r.choice(gaps)
        more: list[tuple[str, object]] = []
        for name, share, values in (
            ("max_tokens", 0.4, range(1, most + 1)), ("priority", 0.3, range(3)), ("session", 0.3, "ab"),
            ("n", 0.2, (2, 3)), ("use_beam_search", 0.2, (True,)), ("ttft_slo_ms", 0.2, (1, 5)),
            ("deadline_ms", 0.2, (1, 9)), ("family", 0.5, (0, 1)),
        ):  # fmt: skip
            if r.random() < share:
                more.append((name, r.choice(values)))
        rows.append(Row(now, r.randint(1, prompts), r.randint(1, most), tuple(more)))
    return tuple(rows)
