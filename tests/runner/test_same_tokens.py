"""The model says the same thing wherever its KV cache lies and however batches are formed; a fault does not pass."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from allocators.buddy import Buddy
from allocators.checker import ContractError
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from allocators.virtual import Virtual
from schedulers.continuous import Continuous
from schedulers.reservation import RESERVATIONS
from schedulers.static import Static
from tests.runner.serving import difference, expected, requests, serve

POOL, LONGEST = 160, 64
ALLOCATORS = {
    "slab": partial(Contiguous, POOL, LONGEST),
    "first_fit": partial(Contiguous, POOL, LONGEST, fit="first_fit"),
    "best_fit": partial(Contiguous, POOL, LONGEST, fit="best_fit"),
    "compacting": partial(Contiguous, POOL, LONGEST, fit="first_fit", compaction="on_refusal"),
    "growing": partial(Contiguous, POOL, LONGEST, fit="best_fit", compaction="on_refusal", growth=3),
    "buddy": partial(Buddy, POOL, LONGEST),
    "virtual": partial(Virtual, POOL, LONGEST, page_tokens=6),
    "paged1": partial(Paged, POOL, LONGEST, block_size=1),
    "paged4": partial(Paged, POOL, LONGEST, block_size=4),
    "paged16": partial(Paged, POOL, LONGEST, block_size=16),
    "radix": partial(Radix, POOL, LONGEST),
}
SCHEDULERS = {
    "static": partial(Static, max_num_seqs=6),
    "continuous": partial(Continuous, watermark=0.0),
    "prefill_first": partial(Continuous, prefill_first=True),
    "chunked": partial(Continuous, chunked_prefill=True, max_num_batched_tokens=9),
    "static_chunked": partial(Static, chunked_prefill=True, max_num_batched_tokens=9),
}


def scheduler(name, reservation):
    return lambda allocator: SCHEDULERS[name](allocator, RESERVATIONS[reservation], max_model_len=LONGEST)


def test_the_expected_answers_are_varied_enough_to_show_a_fault():
    for name in ("opt", "gpt2", "llama"):
        assert all(len(set(answer.tokens)) >= 10 for answer in expected(name).values())


# Every allocator and every scheduler meets every model; by default every other pair is tried.
PAIRS = [pytest.param(place, schedule, ("opt", "gpt2", "llama")[(i + j) % 3],
                      marks=() if (i + j) % 2 == 0 else pytest.mark.slow)
         for i, place in enumerate(ALLOCATORS) for j, schedule in enumerate(SCHEDULERS)]  # fmt: skip


@pytest.mark.parametrize(("allocate", "schedule", "name"), PAIRS)
def test_every_pair_says_what_generate_says(allocate, schedule, name):
    reservation = "on_demand" if ALLOCATORS[allocate]().grows else "pow2"
    served = serve(name, ALLOCATORS[allocate](), scheduler(schedule, reservation))
    assert difference(served, expected(name)) < 1e-4


@pytest.mark.parametrize("reservation", ["exact", "max_tokens", "max_model_len"])
@pytest.mark.parametrize("allocate", ["slab", "buddy", "paged16"])
def test_every_reservation_says_the_same(allocate, reservation):
    served = serve("llama", ALLOCATORS[allocate](), scheduler("continuous", reservation))
    assert difference(served, expected("llama")) < 1e-4


@pytest.mark.parametrize("kernels", ["torch", "numba"])
def test_both_cpu_backends_say_the_same(kernels):
    served = serve("llama", ALLOCATORS["paged4"](), scheduler("chunked", "on_demand"), kernels=kernels)
    assert difference(served, expected("llama")) < 1e-4


def test_the_pool_is_small_enough_that_sequences_are_preempted():
    served = serve("opt", ALLOCATORS["paged4"](), scheduler("continuous", "on_demand"))
    assert sum(answer.preemptions for answer in served.values()) >= 3


# ---- mutations: each of these faults must show ---------------------------------------------------------------------


def test_a_table_entry_off_by_one_shows():
    def tamper(runner, batch):
        for seq in batch.seqs:
            if seq.request.id == 3 and seq.stored > 8:
                runner.allocator.tables[seq.row, 0] = (runner.allocator.tables[seq.row, 0] + 1) % 40

    with pytest.raises(ContractError, match="not where it lies"):
        serve("opt", ALLOCATORS["paged4"](), scheduler("continuous", "on_demand"), tamper=tamper)


def test_a_wrong_entry_that_only_the_kernels_see_shows():
    class OffByOne:
        """The runner's view of an allocator, one entry of one row wrong."""

        def __init__(self, allocator):
            self.allocator = allocator

        def __getattr__(self, name):
            if name != "tables":
                return getattr(self.allocator, name)
            tables = self.allocator.tables.copy()
            tables[2, 1] = (tables[2, 1] + 1) % 40
            return tables

    def tamper(runner, batch):
        runner.allocator = runner._tables.allocator = OffByOne(runner._tables.allocator)

    served = serve("opt", ALLOCATORS["paged4"](), scheduler("continuous", "on_demand"), tamper=tamper)
    assert difference(served, expected("opt")) > 1e-2


def test_a_stale_row_shows():
    class Stale:
        """The runner's view of an allocator whose changed rows are never told."""

        def __init__(self, allocator):
            self.allocator, self.old = allocator, allocator.tables.copy()

        def __getattr__(self, name):
            if name == "tables":
                fresh, rows = self.allocator.tables, len(self.old)
                known = self.old >= 0
                return np.where(known, self.old, fresh[:rows])
            return getattr(self.allocator, name)

    views = {}

    def tamper(runner, batch):
        if batch.preempted and not views:  # from here on, rows that were in use keep their first entries
            views["stale"] = runner.allocator = runner._tables.allocator = Stale(runner.allocator)

    served = serve("opt", ALLOCATORS["paged4"](), scheduler("continuous", "on_demand"), tamper=tamper)
    assert views
    assert not difference(served, expected("opt")) < 1e-2


def test_a_corrupted_slot_shows():
    def tamper(runner, batch):
        if len(batch.seqs) > 1 and all(count == 1 for count in batch.counts):
            seq = batch.seqs[0]
            slot = runner.allocator.spans(seq)[0][0]
            for buffer in runner.pool.buffers:
                buffer[:, :, slot] += 1.0

    served = serve("opt", ALLOCATORS["slab"](), scheduler("continuous", "exact"), tamper=tamper)
    assert difference(served, expected("opt")) > 1e-2


@pytest.mark.parametrize("skip", [False, True])
def test_a_skipped_copy_shows(skip):
    """A sequence is moved to a fork of itself in mid-answer; without the copy it forgets what it read."""
    from schedulers.request import Sequence

    moved = {}

    def tamper(runner, batch):
        seq = batch.seqs[0]
        if seq.request.id == 0 and seq.stored == seq.request.prompt_len + 4 and not moved:
            allocator = runner.allocator
            child = Sequence("fork", request=seq.request)
            assert allocator.fork(seq, child)
            moves = allocator.take_moves()
            assert moves
            if not skip:
                runner._moves(moves)
            moved["child"] = child
            allocator.tables[[seq.row, child.row]] = allocator.tables[[child.row, seq.row]]
            extents = allocator.allocator._extents
            extents[seq.row], extents[child.row] = extents[child.row], extents[seq.row]
            allocator.free(child)

    served = serve("opt", Contiguous(POOL, LONGEST), scheduler("continuous", "exact"), requests()[:1], tamper=tamper)
    wrong = difference(served, {0: expected("opt")[0]}) > 1e-2
    assert moved
    assert wrong == skip
