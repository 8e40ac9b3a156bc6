"""The free runs of a pool, neighbours always joined; a run is cut from the front of a hole."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

CHUNK = 32  # holes; a chunk of twice as many is cut in two
START = (1 << 40) - 1


class FirstFit:
    """Takes the lowest hole that is long enough.

    The holes lie in chunks, ascending by address, and each chunk knows its longest: n holes are searched in O(√n).
    """

    def __init__(self, capacity: int) -> None:
        self._starts = [[0]]
        self._slots = [[capacity]]
        self._first = [0]  # by chunk: start of its first hole
        self._longest = [capacity]  # by chunk

    def allocate(self, slots: int) -> int | None:
        """Cut `slots` from a hole; where they start, or None if no hole is long enough."""
        for chunk, longest in enumerate(self._longest):
            if longest < slots:
                continue
            for at, length in enumerate(self._slots[chunk]):
                if length >= slots:
                    return self._cut(chunk, at, slots)
        return None

    def cut(self, start: int, slots: int) -> None:
        """Cut `slots` from the front of the hole that starts at `start`, which is long enough."""
        chunk = bisect_right(self._first, start) - 1
        self._cut(chunk, bisect_left(self._starts[chunk], start), slots)

    def free(self, start: int, slots: int) -> None:
        """Return a run and join it with the holes on both sides."""
        chunk = max(bisect_right(self._first, start) - 1, 0)
        starts, lengths = self._starts[chunk], self._slots[chunk]
        at = bisect_left(starts, start)
        here = at < len(starts)  # the next hole is in this chunk, else it is the first of the next one
        after = (chunk, at) if here else (chunk + 1, 0)
        joins_after = here or chunk + 1 < len(self._first)
        joins_after = joins_after and self._starts[after[0]][after[1]] == start + slots
        joins_before = at > 0 and starts[at - 1] + lengths[at - 1] == start
        if joins_after:
            slots += self._slots[after[0]][after[1]]
        if joins_before:
            if joins_after:
                self._delete(*after)
            self._change(chunk, at - 1, starts[at - 1], lengths[at - 1] + slots)
        elif joins_after:
            self._change(*after, start, slots)
        else:
            self._insert(chunk, at, start, slots)

    def _cut(self, chunk: int, at: int, slots: int) -> int:
        """Cut `slots` from the front of a hole; where they start."""
        start, length = self._starts[chunk][at], self._slots[chunk][at]
        if length > slots:
            self._change(chunk, at, start + slots, length - slots)
        else:
            self._delete(chunk, at)
        return start

    def _change(self, chunk: int, at: int, start: int, slots: int) -> None:
        """Give a hole other ends; it stays between the same neighbours."""
        lengths, longest = self._slots[chunk], self._longest[chunk]
        before, lengths[at] = lengths[at], slots
        self._starts[chunk][at] = start
        if not at:
            self._first[chunk] = start
        if slots >= longest:
            self._longest[chunk] = slots
        elif before == longest:
            self._longest[chunk] = max(lengths)

    def _insert(self, chunk: int, at: int, start: int, slots: int) -> None:
        starts, lengths = self._starts[chunk], self._slots[chunk]
        starts.insert(at, start)
        lengths.insert(at, slots)
        self._first[chunk] = starts[0]
        self._longest[chunk] = max(slots, self._longest[chunk])
        if len(starts) == 2 * CHUNK:
            self._starts[chunk : chunk + 1] = [starts[:CHUNK], starts[CHUNK:]]
            self._slots[chunk : chunk + 1] = [lengths[:CHUNK], lengths[CHUNK:]]
            self._first.insert(chunk + 1, starts[CHUNK])
            self._longest[chunk : chunk + 1] = [max(lengths[:CHUNK]), max(lengths[CHUNK:])]

    def _delete(self, chunk: int, at: int) -> None:
        starts, lengths = self._starts[chunk], self._slots[chunk]
        del starts[at]
        slots = lengths.pop(at)
        if not starts and len(self._first) > 1:
            del self._starts[chunk], self._slots[chunk], self._first[chunk], self._longest[chunk]
            return
        if starts:
            self._first[chunk] = starts[0]
        if slots == self._longest[chunk]:
            self._longest[chunk] = max(lengths, default=0)


class BestFit:
    """Takes the smallest hole that is long enough, the lowest of equal ones."""

    def __init__(self, capacity: int) -> None:
        self._slots = {0: capacity}  # by start
        self._start = {capacity: 0}  # by end
        self._by_length = [capacity << 40]  # ascending: slots << 40 | start

    def allocate(self, slots: int) -> int | None:
        """Cut `slots` from a hole; where they start, or None if no hole is long enough."""
        at = bisect_left(self._by_length, slots << 40)
        if at == len(self._by_length):
            return None
        start = self._by_length.pop(at) & START
        length = self._slots.pop(start)
        if length > slots:
            self._add(start + slots, length - slots)
        else:
            del self._start[start + length]
        return start

    def cut(self, start: int, slots: int) -> None:
        """Cut `slots` from the front of the hole that starts at `start`, which is long enough."""
        rest = self._remove(start) - slots
        if rest:
            self._add(start + slots, rest)

    def free(self, start: int, slots: int) -> None:
        """Return a run and join it with the holes on both sides."""
        before = self._start.get(start)
        if start + slots in self._slots:
            slots += self._remove(start + slots)
        if before is not None:
            slots += self._remove(before)
            start = before
        self._add(start, slots)

    def _add(self, start: int, slots: int) -> None:
        self._slots[start] = slots
        self._start[start + slots] = start
        insort(self._by_length, slots << 40 | start)

    def _remove(self, start: int) -> int:
        slots = self._slots.pop(start)
        del self._start[start + slots]
        del self._by_length[bisect_left(self._by_length, slots << 40 | start)]
        return slots
