"""The sequences of a request that wants several answers: samples of one prompt, or the beams of a search."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import NamedTuple

from allocators.base import Allocator, AllocatorError
from schedulers.content import Chain
from schedulers.request import Request, Sequence


class Branch(NamedTuple):
    """How one answer goes on: which member of its group it continues, and with which token.

    Attributes:
        parent: position in `Group.seqs`.
        token: the sampled token; None = simulated.
        score: log-probability of the whole answer, of beams only.
    """

    parent: int
    token: int | None = None
    score: float = 0.0


class Group:
    """Computed in step, and admitted, preempted and swapped together.

    A group begins with its leader, which computes the prompt. Then the others fork from it, and each step goes on with
    one token of every member. Members of a search are forked and forgotten at each step, as `Branch`es say. A group
    that has lost its memory begins with the prompt again; then each member computes its own answer so far.

    Attributes:
        seqs: the leader first.
        forked: whether the prompt is stored and all members hold it.
    """

    def __init__(self, leader: Sequence) -> None:
        request = leader.request
        self.request: Request = request
        self.seqs = [leader]
        self.forked = False
        self._together = False
        self._forks = 0
        for i in range(1, request.n):
            name = f"{leader.name}, answer {i}"
            self.seqs.append(Sequence(name, request=request, end_tokens=leader.end_tokens))
        for seq in self.seqs:
            seq.group = self

    @property
    def size(self) -> int:
        return len(self.seqs)

    def due(self, seq: Sequence, budget: int) -> int:
        """Tokens of a member to be computed now, of at most `budget`; the last ones of all members in one step.

        The leader must be asked before the others.
        """
        leader = self.seqs[0]
        if not self.forked:
            return min(self.request.prompt_len - seq.stored, budget) if seq is leader else 0
        if any(member.num_tokens - member.stored > 1 for member in self.seqs):
            return min(seq.num_tokens - seq.stored - 1, budget)
        if seq is leader:
            self._together = budget >= self.size
        return int(self._together)

    def ready(self) -> bool:
        """Whether the next token of all members is due: from the logits of the prompt, or from those of each."""
        leader = self.seqs[0]
        return leader.stored >= leader.num_tokens  # beyond it after a jump

    def branch(self, allocator: Allocator, branches: Items[Branch] | None) -> None:
        """Go on with as many answers as there are members; without `branches`, each with itself.

        Members that nobody continues make room for those that several continue.
        """
        leader = self.seqs[0]
        if branches is None:
            branches = [Branch(i if self.forked else 0) for i in range(self.size)]
        heirs = dict[int, Branch]()
        further = [branch for branch in branches if heirs.setdefault(branch.parent, branch) is not branch]
        spare = [seq for i, seq in enumerate(self.seqs) if i not in heirs]
        for seq, branch in zip(spare, further, strict=True):
            self._copy(allocator, self.seqs[branch.parent], seq)
        goes_on = [(self.seqs[parent], branch) for parent, branch in heirs.items()]
        for seq, branch in goes_on + list(zip(spare, further, strict=True)):
            seq.num_tokens = leader.stored + 1
            seq.score = branch.score
            if branch.token is not None:
                seq.say(branch.token)
        self.forked = True

    def fork_again(self, allocator: Allocator) -> None:
        """All members take over the prompt, whose keys and slots the leader has computed anew."""
        for seq in self.seqs[1:]:
            self._fork(allocator, self.seqs[0], seq)
        self.forked = True

    def _copy(self, allocator: Allocator, parent: Sequence, child: Sequence) -> None:
        """The child becomes what the parent is."""
        self._fork(allocator, parent, child)
        self._forks += 1
        child.prompt, child.outputs = parent.prompt, list(parent.outputs)
        child.chain = (parent.chain or Chain()).fork(self._forks)

    def _fork(self, allocator: Allocator, parent: Sequence, child: Sequence) -> None:
        if not allocator.fork(parent, child, self.request.prompt_len):
            raise AllocatorError(f"there is no room for {child.name}, though its group was admitted")
