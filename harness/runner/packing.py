"""From a batch to the arrays of one packed row: decoding lanes first, then prompt chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from schedulers.request import Batch, Sequence


@dataclass(slots=True)
class Packed:
    """The arrays of a step; T packed tokens, `lanes` decoding lanes, then the chunks.

    Attributes:
        ids, positions, slots: ``[T]`` int64.
        rows, lengths: ``[lanes + chunks]`` int32.
        query_starts: ``[chunks + 1]`` int32.
        states: ``[lanes + chunks]`` int64, rows of recurrent states; None = those of the tables.
        due: ``[n]`` int64, packed positions whose logits are needed, in the order of `order`.
        order: for each due position, the index of its sequence in the batch.
    """

    ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    rows: np.ndarray
    lengths: np.ndarray
    query_starts: np.ndarray
    lanes: int
    due: np.ndarray
    order: list[int]
    states: np.ndarray | None = None


def pack(batch: Batch, tables: np.ndarray, block_size: int, scratch: int,
         state_row: Callable[[Sequence], int] | None = None) -> Packed:  # fmt: skip
    """Pack a batch.

    Args:
        tables: ``[R, W]`` int32 rows of the allocator.
        scratch: the slot that finished lanes write to.
        state_row: in which row the recurrent states of a sequence are; None without any.
    """
    seqs, counts = batch.seqs, batch.counts
    decoding = [i for i, count in enumerate(counts) if count == 1]
    chunks = [i for i, count in enumerate(counts) if count != 1] if len(decoding) < len(counts) else []
    lane_seqs = [seqs[i] for i in decoding] + batch.idle
    lanes = len(lane_seqs)
    all_seqs = lane_seqs + [seqs[i] for i in chunks]
    rows = np.fromiter((seq.row for seq in all_seqs), np.int32, len(all_seqs))
    lengths = np.fromiter((seq.stored for seq in all_seqs), np.int32, len(all_seqs))
    ids = np.fromiter((token_at(seq, seq.stored - 1) for seq in lane_seqs), np.int64, lanes)
    positions = lengths[:lanes].astype(np.int64) - 1
    slots = slots_of(tables, block_size, rows[:lanes], positions)
    slots[len(decoding) :] = scratch
    due = [lane for lane, seq in enumerate(lane_seqs[: len(decoding)]) if seq.stored == seq.num_tokens]
    order = decoding if len(due) == len(decoding) else [decoding[lane] for lane in due]
    query_starts = np.zeros(len(chunks) + 1, np.int32)
    if chunks:
        order = list(order)
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = [(ids, positions, slots)]
        end = lanes
        for n, i in enumerate(chunks):
            seq, count = seqs[i], counts[i]
            where = np.arange(seq.stored - count, seq.stored)
            row = np.full(count, seq.row, np.int32)
            parts.append((tokens_of(seq)[where], where, slots_of(tables, block_size, row, where)))
            query_starts[n + 1] = query_starts[n] + count
            end += count
            if seq.stored == seq.num_tokens:
                due.append(end - 1)
                order.append(i)
        ids, positions, slots = (np.concatenate(part) for part in zip(*parts, strict=True))
    states = np.fromiter(map(state_row, all_seqs), np.int64, len(all_seqs)) if state_row else None
    return Packed(ids, positions, slots, rows, lengths, query_starts, lanes, np.array(due, np.int64), order, states)


def slots_of(tables: np.ndarray, block_size: int, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """``[T]`` int64: the slot of each token, given its sequence's row and its position."""
    if not block_size:
        return tables[rows, 0] + positions
    return tables[rows, positions // block_size].astype(np.int64) * block_size + positions % block_size


def token_at(seq: Sequence, position: int) -> int:
    """The token of a sequence at a position, of its prompt or of its outputs."""
    past_prompt = position - seq.request.prompt_len
    return seq.outputs[past_prompt] if past_prompt >= 0 else seq.prompt[position]


def tokens_of(seq: Sequence) -> np.ndarray:
    """``[num_tokens]`` int64: prompt and outputs so far."""
    return np.concatenate([seq.prompt, np.array(seq.outputs, np.int64)]) if seq.outputs else seq.prompt
