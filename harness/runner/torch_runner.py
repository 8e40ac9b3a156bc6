"""The real runner: one forward pass of a Hugging Face causal LM per step, over the allocator's tables."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from kvlab_kernels.addresses import Addresses
from kvlab_kernels.dispatch import Backend

from allocators.base import Allocator
from harness.runner.attention import Calls, StepContext
from harness.runner.base import StepResult
from harness.runner.dense import rows_of
from harness.runner.flat import Step, as_it_is
from harness.runner.graphs import Capture, DecodeGraphs, padded_sizes
from harness.runner.group_pool import GroupPool
from harness.runner.kv_pool import KVPool
from harness.runner.moves import Moves
from harness.runner.packing import Packed, pack
from harness.runner.recurrent import Lanes, MixerContext
from harness.runner.sampling import branches_of
from harness.runner.states import StateRows
from schedulers.group import Branch
from schedulers.request import Batch, Request


class TorchModelRunner:
    """Runs the batches of one replay on one device.

    Args:
        model: a causal LM whose attention is ours, in eval mode.
        pool: where keys and values lie; a `GroupPool` where the allocator places groups of layers apart.
        calls: of its attention, as the probe found them.
        allocator: whose tables say where the sequences lie.
        backend: the kernels.
        prompt_of: the token ids (int64 array) of a request's prompt.
        seed: of the samples of requests that want several.
        step: computes what `model` does, in fewer calls; by default the model itself is called.
    """

    def __init__(self, model: Any, pool: KVPool | GroupPool, calls: Calls, allocator: Allocator, backend: Backend,
                 prompt_of: Callable[[Request], np.ndarray], step: Step | None = None,
                 seed: int = 0) -> None:  # fmt: skip
        self.model = model
        self.step = step or as_it_is(model)
        self.pool = pool
        self.calls = calls
        self.allocator = allocator
        self.backend = backend
        self.prompt_of = prompt_of
        self.seed = seed
        self.device = pool.device
        self.groups = pool if isinstance(pool, GroupPool) else None
        self.scratch = -1 if isinstance(pool, GroupPool) else pool.slots - 1
        self.keep_logits = False
        self.logits: torch.Tensor | None = None
        self.graphs: DecodeGraphs | None = None
        self._tables = _Tables(allocator, self.device)
        self._states = StateRows(pool.states) if calls.mixers else None
        self._moves = (
            pool.move if isinstance(pool, GroupPool) else Moves(pool.buffers, allocator.host_capacity, backend).run
        )

    @torch.inference_mode()
    def execute(self, batch: Batch) -> StepResult:
        """One step; the only wait for the device is the one for the sampled tokens."""
        for seq in batch.admitted:
            if seq.prompt is None:
                seq.prompt = self.prompt_of(seq.request)
        if batch.moves:
            self._moves(batch.moves)
        if self._states:
            self._states.enter(batch)
        where = self._states.__getitem__ if self._states else None
        tables, block_size = self.allocator.tables, self.allocator.block_size
        if self.groups:  # which slots there are, each group says for itself
            tables, block_size = np.zeros_like(tables[:, :1]), 0
        packed = pack(batch, tables, block_size, self.scratch, where)
        if self.graphs and self.graphs.takes(packed):
            self._tables.current()
            logits = self.graphs.run(packed)
            if len(packed.due) < packed.lanes:
                logits = logits[self._on_device(packed.due)]
        else:
            logits = self.forward(packed)
        if not len(packed.due):
            return StepResult(tokens=[])
        if self.keep_logits:
            self.logits = logits[np.argsort(packed.order, kind="stable")]
        sampled = sorted(zip(packed.order, _largest(logits), strict=True))
        if not any(batch.seqs[i].group for i, _ in sampled):
            return StepResult(tokens=[token for _, token in sampled])
        tokens = [token for i, token in sampled if batch.seqs[i].group is None]
        return StepResult(tokens, branches=self._branches(batch, packed.order, logits))

    def _branches(self, batch: Batch, order: list[int], logits: torch.Tensor) -> dict[int, list[Branch]]:
        """How each group goes on that has a token due; row i of `logits` is of sequence `order[i]` of the batch."""
        rows = {id(batch.seqs[at]): row for row, at in enumerate(order)}
        due = [batch.seqs[at].group for at in order if batch.seqs[at] is batch.seqs[at].members[0]]
        return {
            group.request.id: branches_of(
                group, logits[[rows[id(seq)] for seq in group.seqs if id(seq) in rows]], self.seed
            )
            for group in due
            if group is not None
        }

    def forward(self, packed: Packed) -> torch.Tensor:
        """``[n, vocabulary]``: logits of the packed positions that are due."""
        lanes, chunks = packed.lanes, len(packed.query_starts) - 1
        rows, lengths = self._on_device(packed.rows), self._on_device(packed.lengths)
        tables, block_size = self._tables.current(), self.allocator.block_size
        context = StepContext(self.pool.layers, self.calls, self.backend, self._on_device(packed.slots))
        if self.groups:
            context.places = self.groups.places(packed)
        if lanes:
            context.decode = Addresses(tables, rows[:lanes], lengths[:lanes], block_size)
            context.max_decode = int(packed.lengths[:lanes].max())
        if chunks:
            context.prefill = Addresses(tables, rows[lanes:], lengths[lanes:], block_size)
            context.query_starts = self._on_device(packed.query_starts)
            context.max_query = int(np.diff(packed.query_starts).max())
            context.max_prefill = int(packed.lengths[lanes:].max())
        if self.calls.most:
            counts = np.concatenate([np.ones(lanes, np.int64), np.diff(packed.query_starts)])
            where = self.allocator.tables, block_size, packed.rows
            context.rows = list(rows_of(*where, packed.lengths, counts, self.calls.most, self.device))
        if self.calls.mixers:
            context.states = self._mixing(packed)
        ids, positions, due = (self._on_device(array) for array in (packed.ids, packed.positions, packed.due))
        return self.step(ids, positions, due, context)

    def _mixing(self, packed: Packed) -> MixerContext:
        """Which tokens go through recurrent modules together: lanes with a past, and everything else one by one."""
        lanes, rows = packed.lanes, packed.rows.astype(np.int64) if packed.states is None else packed.states
        self.pool.states.reserve(int(rows.max()) + 1)
        counts = np.concatenate([np.ones(lanes, np.int64), np.diff(packed.query_starts)])
        ends, fresh = counts.cumsum(), packed.lengths == counts
        where, single, alone = self._on_device(rows), list[Lanes](), list[Lanes]()
        borders = [-1, *np.flatnonzero(fresh[:lanes]).tolist(), lanes]  # lanes without a past, between runs of others
        for before, after in pairwise(borders):
            if after > before + 1:
                single.append(Lanes(slice(before + 1, after), where[before + 1 : after], False))
        for i in [*borders[1:-1], *range(lanes, len(counts))]:
            alone.append(Lanes(slice(int(ends[i] - counts[i]), int(ends[i])), where[i : i + 1], bool(fresh[i])))
        return MixerContext(self.calls.mixers, self.pool.states.pools, single, alone)

    @torch.inference_mode()
    def capture(self, max_lanes: int, max_length: int, capture: Capture | None = None) -> None:
        """Capture graphs of decode steps of up to `max_lanes` lanes and contexts of up to `max_length` tokens.

        The tables must not be replaced by larger ones afterwards: their rows are made for `max_lanes` here.

        Raises:
            NotImplementedError: groups of layers lie apart, the model has recurrent layers, or an attention of its own.
        """
        if self.groups:
            raise NotImplementedError("the tables of groups of layers are made for each step")
        if self.calls.mixers:
            raise NotImplementedError("states of recurrent layers are gathered outside of graphs")
        if self.calls.most:
            raise NotImplementedError("the model's own attention gathers contexts of any length")
        self.allocator.reserve_rows(max_lanes)
        tables, block_size = self._tables.current(), self.allocator.block_size
        every = torch.arange(padded_sizes(max_lanes)[-1], device=self.device)

        def decode(ids: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor,
                   lengths: torch.Tensor) -> torch.Tensor:  # fmt: skip
            context = StepContext(self.pool.layers, self.calls, self.backend, slots)
            context.decode = Addresses(tables, rows, lengths, block_size)
            context.max_decode = max_length
            return self.step(ids, positions, every[: len(ids)], context)

        self.graphs = DecodeGraphs(decode, padded_sizes(max_lanes), self.scratch, self.device, capture)

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.pin_memory().to(self.device, non_blocking=True)


def _largest(logits: torch.Tensor) -> list[int]:
    """The token of each row of ``[n, vocabulary]``; numpy's argmax is vectorised and PyTorch's on a CPU is not."""
    if logits.device.type == "cpu" and logits.dtype == torch.float32:
        return logits.numpy().argmax(-1).tolist()
    return logits.argmax(-1).tolist()


class _Tables:
    """The allocator's tables as a tensor: shared memory on a CPU, a copy mended row by row elsewhere."""

    def __init__(self, allocator: Allocator, device: torch.device) -> None:
        self.allocator = allocator
        self.device = device
        self._source: np.ndarray | None = None
        self._tensor = torch.empty(0)

    def current(self) -> torch.Tensor:
        source = self.allocator.tables
        if source is not self._source:
            self._source, self._tensor = source, torch.from_numpy(source).to(self.device)
            self.allocator.take_dirty()
        elif self.device.type != "cpu" and (dirty := self.allocator.take_dirty()):
            rows = torch.tensor(dirty)
            self._tensor[rows.to(self.device)] = torch.from_numpy(source[dirty]).to(self.device)
        return self._tensor
