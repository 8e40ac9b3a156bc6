"""A radix tree of the pages in a pool by what they contain (RadixAttention), and the order of their eviction."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from allocators.base import NO_KEYS


class Node:
    """Pages whose contents follow one another, and everything known that follows them.

    Attributes:
        parent: what they follow; None = this is the root, which is empty.
        keys: (tokens, 2) their contents, see `Holder.token_keys`.
        pages: their numbers in the pool.
        children: by the content of their first page.
        refs: sequences that hold these pages; who holds a node holds all above it.
        finished: those of them that are finished (held by a static batch).
        used_at: when a sequence last let go of them.
        ticket: of its place in the queue for eviction, 0 = none.
    """

    __slots__ = ("children", "finished", "keys", "pages", "parent", "refs", "ticket", "used_at")

    def __init__(self, parent: Node | None, keys: np.ndarray, pages: np.ndarray) -> None:
        self.parent, self.keys, self.pages = parent, keys, pages
        self.children: dict[bytes, Node] = {}
        self.refs = self.finished = self.used_at = self.ticket = 0


class Match(NamedTuple):
    """How far a content was found.

    Attributes:
        node: the last node that it shares pages with; the root when nothing was found.
        part: how many of that node's.
        pages: in all.
        held: those of them that some sequence holds.
    """

    node: Node
    part: int
    pages: int
    held: int


class RadixTree:
    """Which pages hold which contents. A page lies in one node; contents are compared from their beginning on.

    Pages that nobody holds are evicted from the end of the leaf that was let go of longest ago, as many as are needed.
    (SGLang drops whole leaves. One by one, it makes no difference how many pages are asked for at a time.)

    Attributes:
        num_cached: pages that nobody holds.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = Node(None, NO_KEYS, np.empty(0, np.int32))
        self.root.refs = 1
        self.num_cached = 0
        self.num_shared = 0  # holders beyond the first, summed over all pages
        self._now = self._tickets = 0
        self._queue: list[tuple[int, int, Node]] = []  # (used_at, ticket, leaf); outdated where the tickets differ
        self._longest = 64

    def match(self, keys: np.ndarray, most: int) -> Match:
        """How many of the first `most` pages of a content are here. Changes nothing."""
        node, part, at, held, size = self.root, 0, 0, 0, self.page_size
        most = min(most, len(keys) // size)
        while at < most:
            child = node.children.get(keys[at * size : (at + 1) * size].tobytes())
            if child is None:
                break
            part = self._common(child, keys[at * size : most * size])
            at += part
            held += part if child.refs else 0
            node = child
            if part < len(child.pages):
                break
        return Match(node, part, at, held)

    def reach(self, match: Match) -> Node:
        """The node that ends where a match does: its last node, or the upper part of it."""
        node, part, *_ = match
        return node if part == len(node.pages) else self._split(node, part)

    def pages_to(self, node: Node) -> np.ndarray:
        """All pages from the root to the end of `node`, in order."""
        runs = [each.pages for each in self.path(node)]
        return np.concatenate(runs[::-1]) if runs else self.root.pages

    def path(self, node: Node) -> list[Node]:
        """`node` and all above it but the root, upwards."""
        nodes: list[Node] = []
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes

    def hold(self, node: Node) -> None:
        """One more sequence holds `node` and all above it."""
        for each in self.path(node):
            if not each.refs:
                self.num_cached -= len(each.pages)
                each.ticket = 0
            else:
                self.num_shared += len(each.pages)
            each.refs += 1

    def let_go(self, node: Node, finished: bool = False) -> None:
        """One sequence less holds `node` and all above it."""
        self._now += 1
        for each in self.path(node):
            each.refs -= 1
            each.finished -= finished
            each.used_at = self._now
            if not each.refs:
                self.num_cached += len(each.pages)
            else:
                self.num_shared -= len(each.pages)
        self._offer(node)

    def grow(self, node: Node, keys: np.ndarray, pages: np.ndarray) -> Node | None:
        """Let pages be found that a sequence has stored after those up to `node`, all of which it holds.

        Returns:
            The node that ends with them, which the sequence then holds too; None where the same content is here already
            (nothing changed).
        """
        if keys[: self.page_size].tobytes() in node.children:
            return None
        if node.refs == 1 and not node.children and node is not self.root:
            node.keys, node.pages = np.concatenate((node.keys, keys)), np.concatenate((node.pages, pages))
            return node
        child = self._attach(node, keys, pages)
        child.refs = 1
        return child

    def insert(self, node: Node, keys: np.ndarray, pages: np.ndarray) -> int:
        """Keep pages that a sequence leaves behind after those up to `node`, all of which it still holds.

        Returns:
            How many of the first ones were here already; those can be given back.
        """
        at, size = 0, self.page_size
        self._now += 1
        while at < len(pages):
            child = node.children.get(keys[at * size : (at + 1) * size].tobytes())
            if child is None:
                child = self._attach(node, keys[at * size :], pages[at:])
                self.num_cached += len(child.pages)
                self._offer(child)
                break
            part = self._common(child, keys[at * size :])
            node = child if part == len(child.pages) else self._split(child, part)
            node.used_at = self._now
            self._offer(node)
            at += part
        return at

    def evict(self, count: int) -> np.ndarray:
        """`count` pages that nobody held, of which there must be as many; their contents are forgotten."""
        runs, queue = [], self._queue
        self.num_cached -= count
        while count:
            _, ticket, leaf = queue[0]
            if leaf.ticket != ticket or leaf.refs or leaf.children:
                heappop(queue)
                continue
            left = max(len(leaf.pages) - count, 0)
            runs.append(leaf.pages[left:][::-1])
            count -= len(leaf.pages) - left
            if left:
                leaf.pages, leaf.keys = leaf.pages[:left], leaf.keys[: left * self.page_size]
                continue
            heappop(queue)
            parent = leaf.parent
            assert parent is not None
            del parent.children[self._first(leaf)]
            self._offer(parent)
        return np.concatenate(runs) if runs else self.root.pages

    def evict_one(self) -> int:
        """`evict` for a single page, in short."""
        _, ticket, leaf = self._queue[0]
        if leaf.ticket != ticket or leaf.refs or leaf.children or len(leaf.pages) == 1:
            return int(self.evict(1)[0])
        page = leaf.pages[-1]
        leaf.pages, leaf.keys = leaf.pages[:-1], leaf.keys[: -self.page_size]
        self.num_cached -= 1
        return int(page)

    def nodes(self) -> list[Node]:
        """All but the root, parents before their children. O(nodes)."""
        found = list(self.root.children.values())
        for node in found:
            found += node.children.values()
        return found

    def _common(self, node: Node, keys: np.ndarray) -> int:
        """Leading pages of `node` that contain the leading `keys`."""
        length = min(len(node.keys), len(keys))
        same = node.keys[:length] == keys[:length]
        return (length if same.all() else int(same.argmin()) // 2) // self.page_size

    def _split(self, node: Node, at: int) -> Node:
        """Cut the first `at` pages of `node` off; what is left stays the same node for those who hold it."""
        assert node.parent is not None
        parent, first, tokens = node.parent, self._first(node), at * self.page_size
        upper = Node(parent, node.keys[:tokens].copy(), node.pages[:at].copy())
        upper.refs, upper.finished, upper.used_at = node.refs, node.finished, node.used_at
        node.parent, node.keys, node.pages = upper, node.keys[tokens:].copy(), node.pages[at:].copy()
        parent.children[first] = upper
        upper.children[self._first(node)] = node
        return upper

    def _attach(self, node: Node, keys: np.ndarray, pages: np.ndarray) -> Node:
        """A new leaf below `node`; arrays of its own, so that none keeps a longer one alive."""
        child = Node(node, keys.copy(), pages.copy())
        child.used_at = self._now
        node.children[self._first(child)] = child
        return child

    def _first(self, node: Node) -> bytes:
        return node.keys[: self.page_size].tobytes()

    def _offer(self, node: Node) -> None:
        """Queue a node for eviction, if it is a leaf that nobody holds."""
        if node.refs or node.children:
            return
        self._tickets += 1
        node.ticket = self._tickets
        heappush(self._queue, (node.used_at, node.ticket, node))
        if len(self._queue) > self._longest:  # mostly outdated entries, perhaps
            self._queue = [entry for entry in self._queue if entry[2].ticket == entry[1]]
            heapify(self._queue)
            self._longest = 2 * len(self._queue) + 64
