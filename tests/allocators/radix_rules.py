"""What must hold of a radix pool at any time, looked up page by page; and sequences of known tokens to fill it with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from allocators.base import Ask, Holder
from allocators.radix import Radix


class Text(Holder):
    """A sequence of known tokens."""

    __slots__ = ("tokens",)

    def __init__(self, name: str, tokens: list[int]) -> None:
        super().__init__(name)
        self.tokens = tokens

    def token_keys(self, count: int) -> np.ndarray:
        return np.array([(0, token) for token in self.tokens[:count]], dtype=np.int64).reshape(-1, 2)


def admitted(allocator: Any, name: str, tokens: list[int], stored: int | None = None) -> Text:
    """A sequence, admitted with whatever hit there is; all of its tokens (or `stored`) are committed."""
    seq = Text(name, tokens)
    hit = allocator.lookup(seq, len(tokens) - 1)
    assert allocator.admit([seq], Ask(len(tokens), final=len(tokens), hit=hit)) == hit.tokens
    allocator.commit([seq], [(len(tokens) if stored is None else stored) - seq.stored])
    return seq


def check_tree(radix: Radix) -> None:
    """Each page is free, in one node or a sequence's own; nodes are held by whom they say; contents differ."""
    tree, holders = radix.tree, list(radix._holders.values())
    refs, finished = Counter[int](), Counter[int]()
    own: list[int] = []
    for holder in holders:
        node, shown = radix._lanes[holder.row]
        path = tree.path(node)
        refs.update(map(id, path))
        if holder.finished:
            finished.update(map(id, path))
        assert sum(len(each.pages) for each in path) == shown, f"{holder.name} shows another number of pages"
        own += radix.tables[holder.row, shown : holder.held // radix.page_size].tolist()
    nodes = tree.nodes()
    for node in nodes:
        assert len(node.pages), "a node without pages"
        assert len(node.keys) == len(node.pages) * radix.page_size
        assert (node.refs, node.finished) == (refs[id(node)], finished[id(node)]), "a node has other holders"
        assert node.parent is not None
        assert node.parent.refs >= node.refs or node.parent is tree.root
        assert node.parent is tree.root or node.parent.used_at >= node.used_at or node.refs
        for first, child in node.children.items():
            assert child.parent is node
            assert first == child.keys[: radix.page_size].tobytes()
        if not node.refs and not node.children:
            queued = [ticket for _, ticket, each in tree._queue if each is node]
            assert node.ticket in queued, "a leaf that nobody holds can't be evicted"
    pages = own + radix.free_pages() + [page for node in nodes for page in node.pages.tolist()]
    assert sorted(pages) == list(range(radix.num_pages)), "a page is lost, or in two places"
    assert tree.num_cached == sum(len(node.pages) for node in nodes if not node.refs)
