"""The sequences of a request that wants several answers: samples of one prompt, or the beams of a search."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import NamedTuple

from allocators.base import Allocator, AllocatorError, Ask
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

    def num_new_tokens(self, seq: Sequence, budget: int) -> int:
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

    def join(self, allocator: Allocator, ask: Ask) -> list[Sequence]:
        """Who is admitted with the leader: nobody where forks share its slots, else all, with room for their tokens.

        `ask`, made for the leader, becomes one for them.
        """
        prompt, answers = self.request.prompt_len, self.seqs[0].num_tokens - self.request.prompt_len
        if allocator.forks_share:
            ask.must_fit = prompt + answers * self.size
            return self.seqs[:1]
        ask.tokens, ask.must_fit, ask.count = prompt + answers, prompt + answers, self.size
        return self.seqs

    def advance(self, allocator: Allocator, branches: Items[Branch] | None) -> bool:
        """Go on after a step, if its prompt or tokens of all members are there; whether it produced any."""
        new = not self.forked and self.seqs[0].stored == self.request.prompt_len
        produces = self.ready() and (new or self.forked)
        if produces:
            self.branch(allocator, branches)
        elif new:
            self.fork_again(allocator)
        return produces

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
                seq.append_token(branch.token)
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


Branches = Mapping[int, Items[Branch]]


class Groups:
    """The groups among the sequences that a scheduler runs.

    Attributes:
        unforked: those whose prompt is not stored yet.
        branching: those that fork between steps: the unforked ones, and searches.
        siblings: running sequences beyond the first of each request.
        to_come: members that unforked groups will add to the running sequences.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.unforked = self.branching = self.siblings = self.to_come = 0

    def count(self, running: Items[Sequence]) -> None:
        """After a group has come, forked or gone."""
        groups = list({id(seq.group): seq.group for seq in running if seq.group is not None}.values())
        unforked = [group for group in groups if not group.forked]
        self.unforked = len(unforked)
        self.branching = sum(not group.forked or group.request.use_beam_search for group in groups)
        self.siblings = sum(seq.group is not None for seq in running) - len(groups)
        self.to_come = sum(group.size - sum(seq.row >= 0 for seq in group.seqs) for group in unforked)

    def exceeds_lanes(self, seq: Sequence, running: Items[Sequence], most: int) -> bool:
        """Whether there are too few of `most` lanes for a sequence, its group and who will come of other groups."""
        return len(running) + self.to_come + len(seq.members) > most

    def advance(self, group: Group, branches: Branches | None, running: list[Sequence]) -> bool:
        """Let a group that was computed go on, its members side by side once they have forked; whether it produced."""
        before = group.forked
        produces = group.advance(self.allocator, (branches or {}).get(group.request.id))
        if group.forked and not before:
            at = running.index(group.seqs[0])
            running[at : at + 1] = [seq for seq in group.seqs if seq is group.seqs[0] or seq not in running]
            self.count(running)
        return produces

    def unservable(self, request: Request, stored: int, longest: int, limits: Mapping[str, int]) -> str | None:
        """Why the answers of a request can never run together, or None.

        Args:
            stored: tokens that must fit for the leader, its promise included.
            longest: tokens stored of each answer at its end.
            limits: what bounds the sequences of a step, by name.
        """
        allocator, n, unit = self.allocator, request.n, self.allocator.block_size
        if not allocator.can_fork:
            return f"n = {n}: the allocator, as it is configured, can't fork a sequence"
        for key, limit in limits.items():
            if n > limit:
                return f"n = {n} answers that are computed in one step exceed {key} = {limit}"
        slots = n * (allocator.footprint(stored) or 0)
        if allocator.forks_share:  # what was promised to the leader, and of the others what no other holds too
            leader, each = (allocator.footprint(tokens) or 0 for tokens in (stored, longest))
            slots = leader + (n - 1) * (each - (request.prompt_len // unit * unit if unit else request.prompt_len))
        if slots > allocator.capacity:
            return f"n = {n} answers take {slots} slots and never fit the KV pool of {allocator.capacity}"
        return None
