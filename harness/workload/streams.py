"""One seed, many independent random streams, each identified by its name and keys."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from harness.workload.errors import WorkloadError
from schedulers.request import Request

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MASK = (1 << 64) - 1


def stream(seed: int, name: str, *keys: int) -> np.random.Generator:
    """The random stream called `name`, independent of every other name, key and seed.

    Args:
        seed: the run's seed, 0 to 2**64 - 1.
        name: what is drawn ("arrivals", "prompt lengths", ...).
        keys: 64-bit integers that tell streams of one name apart (a request id, a layer).

    Raises:
        WorkloadError: the seed is not an integer in that range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _MASK:
        raise WorkloadError(f"seed={seed!r}: the seed must be a whole number from 0 to 2**64 - 1")
    label = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    # SeedSequence concatenates the 32-bit words of its keys, so (1 + 2**32,) and (1, 1) would be one stream:
    # every 64-bit number is therefore written as exactly two words.
    words = [word for key in (label, *keys) for word in (key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=words)))


def prompt_tokens(request: Request, vocab_size: int, seed: int) -> npt.NDArray[np.int64]:
    """The prompt's token ids, int64[prompt_len], each in [0, vocab_size).

    They are the request's own `token_ids` (modulo the vocabulary size, so equal ids stay equal); else drawn from
    (seed, hash id, position in the piece), so equal hash ids are equal tokens in every request; else drawn from
    (seed, request id, position). Nothing is stored: the same arguments always give the same tokens.

    Raises:
        WorkloadError: the vocabulary is empty, or the request carries fewer ids than its prompt needs.
    """
    if vocab_size < 1:
        raise WorkloadError(f"a vocabulary of {vocab_size} tokens has none to draw from")
    length = request.prompt_len
    if request.token_ids is not None:
        tokens = np.asarray(request.token_ids, dtype=np.int64)[:length] % vocab_size
    elif request.hash_ids is not None:
        ids, piece = np.asarray(request.hash_ids, dtype=np.uint64), min(request.hash_block, length)
        tokens = _draw(_key(seed, 1), ids, piece, vocab_size)
    else:
        tokens = _draw(_key(seed, 0), np.array([request.id], dtype=np.uint64), length, vocab_size)
    if len(tokens) < length:
        raise WorkloadError(f"request {request.id}: its ids stand for {len(tokens)} tokens, its prompt has {length}")
    return tokens[:length]


def _draw(key: np.uint64, ids: npt.NDArray[np.uint64], count: int, vocab_size: int) -> npt.NDArray[np.int64]:
    """`count` tokens for each id: a counter-based generator (SplitMix64), so all of them in a few array operations."""
    start = _mix(ids ^ key)
    bits = _mix(start[:, None] + _GOLDEN * np.arange(1, count + 1, dtype=np.uint64))
    # The upper 32 bits, scaled: multiply and shift is cheaper than a modulo and as uniform for any real vocabulary.
    return ((bits >> np.uint64(32)) * np.uint64(vocab_size) >> np.uint64(32)).astype(np.int64).ravel()


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finalizer: a bijection of 64 bits, so distinct ids stay distinct."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@lru_cache(maxsize=64)
def _key(seed: int, kind: int) -> np.uint64:
    return np.uint64(stream(seed, "tokens", kind).integers(0, 1 << 64, dtype=np.uint64))
