"""The share of a workload's prompt tokens that repeat: an upper bound on the hit rate of any prefix cache."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schedulers.request import Request


def unbounded_hit_rate(requests: Iterable[Request]) -> float | None:
    """Token hit rate of a prefix cache that never evicts, for requests served one after another.

    A token hits if the prompt up to the end of its piece (`hash_block` tokens, or the token itself where there are
    token ids) is the beginning of an earlier prompt. Requests without ids are misses. None when no request has ids.
    """
    nodes: dict[tuple[int, int], int] = {}
    total = hits = 0
    known = False
    for request in requests:
        total += request.prompt_len
        node, hitting = 0, True
        for content, tokens in _pieces(request):
            known = True
            child = nodes.get((node, content))
            if child is None:
                child = nodes[node, content] = len(nodes) + 1
                hitting = False
            hits += tokens if hitting else 0
            node = child
    return hits / total if known else None


def _pieces(request: Request) -> Iterator[tuple[int, int]]:
    """(content, tokens) of each piece of the prompt; the last may have fewer tokens."""
    if request.token_ids is not None:
        for token in request.token_ids:
            yield int(token), 1
    elif request.hash_ids is not None:
        left = request.prompt_len
        for value in request.hash_ids:
            yield int(value), min(request.hash_block, left)
            left -= request.hash_block
