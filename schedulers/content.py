"""Hashes of the blocks, or keys of the tokens, of a sequence, for prefix reuse.

Hashes of two blocks are equal only if all tokens up to their ends are equal. With known token ids, a block's hash is a
digest of all tokens up to its end. With a trace's hash ids, it is a digest of the hash ids up to the piece in which the
block ends. If the content of a prompt is unknown, and for the outputs of a simulated run, hashes are unique to the
request: only the request itself finds them again, after a preemption.

The key of a token is two numbers: the kind of the second number, and that number. Tokens with equal keys at the same
position, after equal keys, are equal: a hash id is the key of every token of its piece.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import sha256
from struct import iter_unpack
from typing import TYPE_CHECKING

import numpy as np

from allocators.base import NO_KEYS

if TYPE_CHECKING:
    from schedulers.request import Request


TOKEN_IDS = 0  # first number of a token's key; for hash ids the length of a piece; below 0 = unique to a request


class Chain:
    """The hashes of a sequence's first blocks, or the keys of its first tokens, as far as they were asked for."""

    __slots__ = ("_digest", "_fork", "keys", "tokens")

    def __init__(self) -> None:
        self.keys: list[Hashable] = []
        self.tokens = NO_KEYS
        self._digest = sha256()  # of the tokens, or the pieces, of the blocks so far
        self._fork = 0  # distinguishes the outputs of one request if their tokens are unknown

    def fork(self, number: int) -> Chain:
        """A copy for a forked sequence; `number` differs for each fork of a request."""
        child = Chain()
        child.keys, child.tokens, child._digest, child._fork = list(self.keys), self.tokens, self._digest.copy(), number
        return child

    def extend(self, request: Request, outputs: Sequence[int], block_size: int, count: int) -> None:
        """Compute at least `count` keys.

        Args:
            request: the sequence's request.
            outputs: the tokens sampled so far; empty if simulated.
            block_size: tokens in a block, the same in every call.
        """
        if request.token_ids is not None:
            self._extend_tokens(request, outputs, block_size, max(count, request.prompt_len // block_size))
        elif request.hash_ids is not None and not self.keys:
            self._extend_pieces(request, block_size)
        prompt = request.prompt_len // block_size
        self.keys += [(request.id, i, self._fork if i >= prompt else 0) for i in range(len(self.keys), count)]

    def extend_tokens(self, request: Request, outputs: Sequence[int], count: int) -> None:
        """Have the keys of at least `count` tokens; of the whole prompt from the first call on."""
        prompt, start = request.prompt_len, len(self.tokens)
        keys = np.empty((max(count, prompt) - start, 2), dtype=np.int64)
        keys[:, 0], keys[:, 1] = -1 - request.id, np.arange(start, start + len(keys))
        keys[max(prompt - start, 0) :, 1] += self._fork << 40
        if not start and request.token_ids is not None:
            keys[:prompt] = TOKEN_IDS, 0
            keys[:prompt, 1] = np.asarray(request.token_ids[:prompt])
        elif not start and request.hash_ids is not None:
            values = np.repeat(np.asarray(request.hash_ids, dtype=np.uint64).view(np.int64), request.hash_block)[
                :prompt
            ]
            keys[: len(values), 0], keys[: len(values), 1] = request.hash_block, values
        if request.token_ids is not None:
            known = outputs[max(start - prompt, 0) : start + len(keys) - prompt]
            at = max(prompt - start, 0)
            keys[at : at + len(known), 0], keys[at : at + len(known), 1] = TOKEN_IDS, known
        self.tokens = np.concatenate((self.tokens, keys)) if start else keys

    def _extend_tokens(self, request: Request, outputs: Sequence[int], block_size: int, count: int) -> None:
        """A key for each block whose tokens are all known."""
        start, end, prompt = len(self.keys) * block_size, count * block_size, request.prompt_len
        tokens = _bytes(request.token_ids[start : min(end, prompt)])
        if end > prompt:
            tokens += _bytes(outputs[max(start - prompt, 0) : end - prompt])
        stride, append, digest, update = 8 * block_size, self.keys.append, self._digest.digest, self._digest.update
        for (block,) in iter_unpack(f"{stride}s", tokens[: len(tokens) // stride * stride]):
            update(block)
            append(digest())

    def _extend_pieces(self, request: Request, block_size: int) -> None:
        """A key for each full block of a prompt of hash ids; 64 bits of each id count."""
        piece, digest, digests = request.hash_block, self._digest, list[bytes]()
        digest.update(piece.to_bytes(8, "little"))
        for content in np.asarray(request.hash_ids, dtype=np.uint64):
            digest.update(content.tobytes())
            digests.append(digest.digest())
        ends = range(block_size - 1, request.prompt_len, block_size)
        self.keys += [(digests[end // piece], i) for i, end in enumerate(ends)]


def _bytes(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, dtype=np.int64).tobytes()
