"""The keys of the allocators and schedulers that come with the program.

A class of one's own has the arguments of its constructor as its keys (`harness.schema.plugins`); nothing here holds for
it. What only a constructor can judge, such as a power of two or a share of its pool, is left to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.schema.key import Key, When, at, where, without
from harness.schema.keys.run import SEED, SIMULATED
from harness.schema.kinds import Choice, Either, Number, Object, Spec, Switch, Table, Text, Whole

# Where the classes of a group lie that come with the program.
HOME = {"allocator": "allocators.", "reservation": "schedulers.", "scheduler": "schedulers."}

TARGET = Text("the dotted name of a class")
SLOTS = Whole(0, 2**31 - 1)
SIZE = Whole(1, 2**31 - 1)
BLOCK = Whole(None, 2**20, "a power of two from 1 to 512, or a multiple of 16")
PAGE = Whole(None, 256, "a power of two from 1 to 256")
SHARE = Number(least=0, below=1)
ON_DEMAND = where("reservation._target_", "schedulers.reservation.on_demand")
BY_LENGTH = When("where something goes by the length of answers", lambda values: (
    at(values, "scheduler.policy") == "shortest_first" or isinstance(at(values, "scheduler.policy"), Mapping)
    or at(values, "scheduler.bucket_by") == "output" or at(values, "scheduler.samples") is not None))  # fmt: skip
PLUGINS = [
    Key("allocator._target_", TARGET, "the class: one that comes with the program or your own", needed=True),
    Key("reservation._target_", Text("the dotted name of a function"), "slots promised at admission", needed=True),
    Key("scheduler._target_", TARGET, "the class: one that comes with the program or your own", needed=True),
    Key("allocator.block_size", BLOCK, "slots in a block", "slots"),
    Key("allocator.enable_prefix_caching", Switch(), "keep full blocks and share them between sequences that begin "
        "alike"),
    Key("allocator.freed_blocks", Choice("front", "back"), "where freed blocks without content join the free list"),
    Key("allocator.retention_interval", Whole(0, 2**20), "ends of windows and states kept for reuse: 0 = of prompts, "
        "N = besides every N tokens, null = of every block", "tokens", null=True,
        when=(where("allocator.enable_prefix_caching", True),)),
    Key("allocator.match_unit", Whole(0, 2**20), "tokens that prefixes are compared by; 0 = what suits the groups",
        "tokens", when=(where("allocator.enable_prefix_caching", True),)),
    Key("allocator.hybrid", Switch(), "whether layers may keep different tokens; false = every layer keeps all"),
    Key("allocator.export_states", Switch(), "whether kernels of the gated delta rule export states inside a prompt "
        "(Hopper)"),
    Key("allocator.window_ratio", Number(above=0), "tokens of a window's pool for each token of the full layers'"),
    Key("allocator.state_ratio", Number(above=0), "bytes of the states' pool for each byte of the others"),
    Key("allocator.placement", Choice("slab", "first_fit", "best_fit", "buddy", "virtual"),
        "where a group's extents lie"),
    Key("allocator.piece_tokens", SIZE, "tokens that a ring has room for beside its window", "tokens"),
    Key("allocator.shares", Table(Number(above=0), "a mapping of their names"), "part of the memory of each group; "
        "null = as the longest sequence needs", null=True),
    Key("allocator.host_slots", SLOTS, "size of the host pool that sequences are swapped to", "slots",
        when=(where("scheduler.preemption", "swap"),)),
    Key("allocator.fit", Choice("slab", "first_fit", "best_fit"), "where an extent is placed; slab = equal lanes"),
    Key("allocator.lane_slots", Either(SIZE, Choice("longest")), "length of a slab's lane; null = max_model_len, "
        "longest = that of the workload's longest request", "slots", null=True,
        when=(where("allocator.fit", "slab"),)),
    Key("allocator.compaction", Choice("never", "on_refusal"), "slide extents together when no hole is long enough"),
    Key("allocator.growth", SLOTS, "by how much a full extent is lengthened; 0 = never", "slots"),
    Key("allocator.page_size", PAGE, "slots that are taken, compared and evicted together", "slots"),
    Key("allocator.page_bytes", Whole(1, 2**40), "size of a page group of K or V of one layer", "bytes", null=True,
        when=(without("allocator.page_tokens"),)),
    Key("allocator.page_tokens", SIZE, "the same in tokens; wins over `page_bytes`", "tokens", null=True),
    Key("allocator.map_us", Number(least=0), "time to map a page group; null = 8.6, from 2 MiB on 40", "µs", null=True,
        when=(SIMULATED,)),
    Key("allocator.background", Switch(), "map page groups for the next tokens beside the step before"),
    Key("allocator.deferred", Switch(), "page groups of a freed sequence stay mapped for the next one"),
    Key("scheduler.max_num_seqs", SIZE, "most sequences, or lanes, in a batch", "sequences"),
    Key("scheduler.max_num_batched_tokens", SIZE, "most tokens computed in a step", "tokens"),
    Key("scheduler.chunked_prefill", Switch(), "whether a prompt may be computed in pieces"),
    Key("scheduler.watermark", SHARE, "share of the pool that an admission leaves free while others run",
        when=(ON_DEMAND,)),
    Key("scheduler.preemption", Choice("recompute", "swap"), "what becomes of a preempted sequence"),
    Key("scheduler.prefill_first", Switch(), "whether a step with new prompts computes prompts only"),
    Key("scheduler.policy", Either(Choice("fcfs", "priority", "shortest_first", "earliest_deadline", "longest_prefix"),
        Object("an order of your own")), "who is admitted first"),
    Key("scheduler.length_predictor", Spec(("oracle", "history"), {"noisy": ("SIGMA", Number(least=0))}),
        "who tells how long answers will be", when=(BY_LENGTH,)),
    Key("scheduler.seed", SEED, "of what the scheduler draws"),
    Key("scheduler.max_wait_s", Number(least=0), "how long the oldest request may wait for a fuller batch", "s"),
    Key("scheduler.compute_finished", Switch(), "whether finished lanes go on being computed"),
    Key("scheduler.bucket_by", Choice("prompt", "output"), "in which length the requests of a batch are alike"),
    Key("scheduler.long_prefill_token_threshold", SLOTS, "most tokens of one sequence in a step while others are "
        "there; 0 = no limit", "tokens"),
    Key("scheduler.scheduler_reserve_full_isl", Switch(),
        "whether all tokens of a sequence must fit before a piece of it is admitted"),
    Key("scheduler.version", Choice("0.33", "0.19"), "whose rules, vLLM's"),
    Key("scheduler.promise", Choice("max_tokens", "exact", "pow2", "max_model_len"), "how long a sequence may get"),
    Key("scheduler.reserved", SHARE, "share of the pool that drawn futures may not use"),
    Key("scheduler.samples", Whole(1, 100_000), "futures drawn in a step"),
    Key("scheduler.window", SIZE, "answers remembered"),
    Key("scheduler.initial_output_len", SIZE, "length of the answers remembered before there are any", "tokens"),
]  # fmt: skip
