"""Allocators as strangers may write them: they raise, leak, free twice, lie, hang, leave the program or kill it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from allocators.paged import Paged


class DiesOnce(Paged):
    """Takes its process with it, the first time that anybody asks."""

    def place(self, holder, tokens):
        mark = Path(os.environ["DEADLY_MARK"])
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().place(holder, tokens)


class Dies(Paged):
    def place(self, holder, tokens):
        os.kill(os.getpid(), signal.SIGKILL)


class Raises(Paged):
    def place(self, holder, tokens):
        raise KeyError("no such drawer")


class Exits(Paged):
    def place(self, holder, tokens):
        sys.exit("enough")


class Leaks(Paged):
    """Keeps a block of what it is given back."""

    def release(self, holder):
        super().release(holder)
        self.pool.allocate(1)


class FreesTwice(Paged):
    """Gives every block back twice."""

    def release(self, holder):
        blocks = list(self._blocks[holder.row])
        super().release(holder)
        self.pool.free(blocks)


class Lies(Paged):
    """Says that it holds a block more than it does."""

    def place(self, holder, tokens):
        held = super().place(holder, tokens)
        return None if held is None else held + self.block_size


class Overlaps(Paged):
    """Gives everybody the same blocks."""

    def place(self, holder, tokens):
        held = super().place(holder, tokens)
        self.tables[holder.row, :] = 0
        return held


class Hangs(Paged):
    def place(self, holder, tokens):
        while True:
            pass


class Slow(Paged):
    def place(self, holder, tokens):
        time.sleep(0.2)
        return super().place(holder, tokens)
