"""What the full blocks of a sequence contain, as keys for prefix reuse: equal only where all tokens up to there are.

A block of known token ids is known by a digest of all tokens up to its end. A prompt of a trace's hash ids is known by
digests of those, read off at the piece in which a block ends. A prompt of which nothing is known, and what a simulated
run generates, belong to their request alone: it finds them again after a preemption, nobody else does.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import sha256
from struct import iter_unpack
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from schedulers.request import Request


class Chain:
    """The keys of a sequence's first blocks, as far as somebody asked for them."""

    __slots__ = ("_digest", "_fork", "keys")

    def __init__(self) -> None:
        self.keys: list[Hashable] = []
        self._digest = sha256()  # of the tokens, or the pieces, of the blocks so far
        self._fork: tuple[int, ...] = ()  # what tells apart answers to one request that nobody knows the tokens of

    def fork(self, number: int) -> Chain:
        """Of a sequence that is the same so far; `number` is another for each fork of a request."""
        child = Chain()
        child.keys, child._digest, child._fork = list(self.keys), self._digest.copy(), (number,)
        return child

    def extend(self, request: Request, outputs: Sequence[int], block_size: int, count: int) -> None:
        """Have at least `count` keys.

        Args:
            request: whose prompt it is.
            outputs: the tokens sampled so far, empty where they are simulated.
            block_size: tokens in a block, the same in every call.
        """
        if request.token_ids is not None:
            self._extend_tokens(request, outputs, block_size, max(count, request.prompt_len // block_size))
        elif request.hash_ids is not None and not self.keys:
            self._extend_pieces(request, block_size)
        in_prompt = request.prompt_len // block_size
        self.keys += [(request.id, i, *self._fork[: i >= in_prompt]) for i in range(len(self.keys), count)]

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
