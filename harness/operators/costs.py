"""The costs of an engine's steps: operator tables composed for one model, one GPU and one kind of parallelism."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from kvlab_kernels.cached import cached_njit

LANES = 2048  # the largest batch of decodes in any table
TOKENS = 16384 + LANES


class Costs(NamedTuple):
    """Arrays in which a step's time is looked up; all times in ns.

    Attributes:
        decode_tokens: ``[tokens + 1]`` everything that depends on the number of tokens, of steps without a prompt.
        prompt_tokens: ``[tokens + 1]`` the same with a prompt.
        sequences: ``[lanes + 1]`` the output matrix.
        lanes: ``[lanes + 1, contexts]`` decode attention in all layers, at `contexts` (ascending) tokens each.
        prompts: ``[batch, length]`` logarithm of prompt attention in all layers, at `batch` and `length` (both log2).
        kernels: number of kernels launched in a step with a prompt.
        floor: least time of such a step, whose kernels are launched one by one.
        host: host time of every step, added to its kernels.
        verified: tokens of a sequence in a decode step: the last one and the drafts after it.
        history: whether a chunk pays for the pairs it attends to (else as a whole prompt of its own length).
    """

    decode_tokens: np.ndarray
    prompt_tokens: np.ndarray
    sequences: np.ndarray
    lanes: np.ndarray
    contexts: np.ndarray
    prompts: np.ndarray
    batch: np.ndarray
    length: np.ndarray
    kernels: float
    floor: float
    host: float
    verified: int
    history: bool


def drafting(costs: Costs, drafts: int, layers: int) -> Costs:
    """The costs with `drafts` tokens drafted per step by one additional layer (MTP, one after the other), and verified
    in the next step.

    Verifying reads each sequence's KV once; a draft takes one of the model's layers and an output matrix.
    """
    if not drafts:
        return costs
    count = np.arange(len(costs.sequences))
    at = np.minimum((1 + drafts) * count, len(count) - 1)
    verified = costs.sequences[at] * (1 + drafts) * count / np.maximum(at, 1)
    each = costs.sequences + costs.decode_tokens[: len(count)] / layers
    return costs._replace(sequences=np.maximum(verified, costs.sequences) + drafts * each,
                          lanes=costs.lanes * (1 + drafts / layers), verified=1 + drafts)  # fmt: skip


@cached_njit()
def _at(axis: np.ndarray, x: float) -> tuple[int, float]:
    """(left neighbour, share of the way to the right one); beyond the ends those of the outermost two points."""
    left = min(max(int(np.searchsorted(axis, x)) - 1, 0), len(axis) - 2)
    return left, (x - axis[left]) / (axis[left + 1] - axis[left])


@cached_njit()
def _by(values: np.ndarray, count: int) -> float:
    """``values[count]``; in proportion beyond the last."""
    last = len(values) - 1
    return values[count] if count <= last else values[last] * count / last


@cached_njit()
def decode_attention(costs: Costs, lanes: int, context: float) -> float:
    """ns for `lanes` sequences that attend to `context` tokens in all, as if all had the mean length."""
    if lanes == 0:
        return 0.0
    row = min(lanes, len(costs.lanes) - 1)
    left, share = _at(costs.contexts, context / lanes)
    share = max(share, 0.0)
    time = costs.lanes[row, left] * (1 - share) + costs.lanes[row, left + 1] * share
    return time * lanes / row


@cached_njit()
def prompt_attention(costs: Costs, prompts: int, tokens: int, context: int, pairs: float) -> float:
    """ns for `prompts` chunks with `tokens` new tokens, `context` tokens with their history, and `pairs` in all.

    There is no table of chunks with a history. A chunk takes a share of the time of a whole prompt of the full length,
    equal to its share of that prompt's pairs: A(full) · (full² − history²) / full².
    """
    if prompts == 0:
        return 0.0
    if not costs.history:
        context, pairs = tokens, prompts * (tokens / prompts) ** 2 / 2
    longest = context / prompts
    i, u = _at(costs.batch, np.log2(prompts))
    j, v = _at(costs.length, np.log2(longest))
    grid = costs.prompts
    log = ((grid[i, j] * (1 - u) + grid[i + 1, j] * u) * (1 - v)
           + (grid[i, j + 1] * (1 - u) + grid[i + 1, j + 1] * u) * v)  # fmt: skip
    return np.exp(log) * min(pairs / (prompts * longest * longest / 2), 1.0)


@cached_njit()
def step_ns(costs: Costs, decodes: int, context: float, prompts: int, tokens: int, prompt_context: int,
            pairs: float) -> float:  # fmt: skip
    """ns of a step: `decodes` sequences with one new token and `context` in all, and `prompts` chunks (`BatchStats`).

    Prompts and decodes of one step share its products and have separate attention kernels, one after the other.
    """
    rest = decode_attention(costs, decodes, context) + _by(costs.sequences, decodes + prompts)
    if prompts == 0:
        return _by(costs.decode_tokens, decodes * costs.verified) + rest + costs.host
    rest += prompt_attention(costs, prompts, tokens, prompt_context, pairs)
    return _with_prompts(costs, decodes * costs.verified + tokens, rest) + costs.host


@cached_njit()
def _with_prompts(costs: Costs, tokens: int, rest: float) -> float:
    return max(_by(costs.prompt_tokens, tokens) + rest, costs.floor)


@cached_njit()
def lockstep_ns(costs: Costs, work: np.ndarray) -> float:
    """ns of a step of data-parallel engines in lockstep: everything that depends on tokens is padded to the largest,
    and of attention and output matrix the slowest counts.

    Args:
        work: ``[engines, 6]``, the arguments of `step_ns`; an engine without work computes a dummy token.
    """
    most, prompts, slowest = 1, False, 0.0
    for decodes, context, chunks, tokens, prompt_context, pairs in work:
        lanes, count = int(decodes), int(chunks)
        most = max(most, lanes * costs.verified + int(tokens))
        prompts = prompts or count > 0
        own = prompt_attention(costs, count, int(tokens), int(prompt_context), pairs)
        own += decode_attention(costs, lanes, context) + _by(costs.sequences, max(lanes + count, 1))
        slowest = max(slowest, own)
    if not prompts:
        return _by(costs.decode_tokens, most) + slowest + costs.host
    return _with_prompts(costs, most, slowest) + costs.host
