"""What a sequence holds of the blocks that the groups of a hybrid model share."""

from __future__ import annotations


class Held:
    """What one sequence holds.

    Attributes:
        tables: by group, a block for each of the first tokens; 0 where nothing is stored any more.
        considered: by group, leading blocks that have their key, if they are to have one.
        previous, retired: by group of states: the column of the state before the last one, and the first column that
            was not looked at for states to be given back.
        pending: by group, what must be copied before it grows: 0 nothing, 1 a block that was found and is not full, 2
            a state under a key that ends inside its block.
        junction: tokens up to which a sibling went the same way.
        exported: (tokens, blocks of the piece) of a state that is exported in this step; (0, 0) = none.
        due: tokens from which on there may be a key to give.
    """

    def __init__(self, groups: int, junction: int) -> None:
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.considered = [0] * groups
        self.previous = [-1] * groups
        self.retired = [0] * groups
        self.pending = [0] * groups
        self.junction = junction
        self.exported = (0, 0)
        self.due = 0
