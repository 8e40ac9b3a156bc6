"""Sequence groups: the sequences of a request with n > 1, samples of one prompt or the beams of a search."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from typing import NamedTuple

from allocators.base import Allocator, AllocatorError, Ask
from schedulers.content import Chain
from schedulers.request import Request, Sequence


class Branch(NamedTuple):
    """How one output goes on: the member of the group that it continues, and the next token.

    Attributes:
        parent: the member's position in `Group.seqs`.
        token: the sampled token; None = simulated.
        score: log-probability of the whole output, for beams only.
    """

    parent: int
    token: int | None = None
    score: float = 0.0


class Group:
    """Sequences that are admitted, preempted and swapped together, and that decode in the same steps.

    The leader computes the prompt. Then the other members fork from it, and each step computes one token of every
    member. In a beam search, members are forked and dropped at each step, as the `Branch`es say. After a preemption the
    leader computes the prompt again; then each member recomputes its own output so far.

    Attributes:
        seqs: the members, the leader first.
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
        """Tokens of a member that the next step may compute, at most `budget`. All members sample in the same step.

        Must be called for the leader before the other members.
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
        """Whether the next token of all members is due."""
        leader = self.seqs[0]
        return leader.stored >= leader.num_tokens  # larger after several steps taken together

    def join(self, allocator: Allocator, ask: Ask) -> list[Sequence]:
        """The members to admit: only the leader if forks share its slots, else all, each with room for its tokens.

        Changes `ask`, which was made for the leader, accordingly.
        """
        prompt, answers = self.request.prompt_len, self.seqs[0].num_tokens - self.request.prompt_len
        if allocator.forks_share:
            ask.must_fit = prompt + answers * self.size
            return self.seqs[:1]
        ask.tokens, ask.must_fit, ask.count = prompt + answers, prompt + answers, self.size
        return self.seqs

    def advance(self, allocator: Allocator, branches: Items[Branch] | None) -> bool:
        """Fork or branch at the end of a step, if the prompt or all tokens are there; whether tokens were produced."""
        new = not self.forked and self.seqs[0].stored == self.request.prompt_len
        produces = self.ready() and (new or self.forked)
        if produces:
            self.branch(allocator, branches)
        elif new:
            self.fork_again(allocator)
        return produces

    def branch(self, allocator: Allocator, branches: Items[Branch] | None) -> None:
        """Continue as `branches` say, one for each member; without `branches`, each member continues itself.

        A member that no branch continues is replaced by a copy of one that several branches continue.
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
        """Fork all members from the leader, which has recomputed the prompt."""
        for seq in self.seqs[1:]:
            self._fork(allocator, self.seqs[0], seq)
        self.forked = True

    def _copy(self, allocator: Allocator, parent: Sequence, child: Sequence) -> None:
        """Make the child a copy of the parent, outputs included."""
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
        unforked: number of groups whose prompt is not stored yet.
        branching: number of groups that fork between steps: unforked ones, and beam searches.
        siblings: running sequences beyond the first of each group.
        to_come: members that unforked groups will add to the running sequences.
    """

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.unforked = self.branching = self.siblings = self.to_come = 0

    def count(self, running: Items[Sequence]) -> None:
        """Recount, after a group was admitted, forked or removed."""
        groups = list({id(seq.group): seq.group for seq in running if seq.group is not None}.values())
        unforked = [group for group in groups if not group.forked]
        self.unforked = len(unforked)
        self.branching = sum(not group.forked or group.request.use_beam_search for group in groups)
        self.siblings = sum(seq.group is not None for seq in running) - len(groups)
        self.to_come = sum(group.size - sum(seq.row >= 0 for seq in group.seqs) for group in unforked)

    def exceeds_lanes(self, seq: Sequence, running: Items[Sequence], most: int) -> bool:
        """Whether `seq`, its group, and the members that other groups will add, need more than `most` lanes."""
        return len(running) + self.to_come + len(seq.members) > most

    def advance(self, group: Group, branches: Branches | None, running: list[Sequence]) -> bool:
        """End a step of a group, and insert forked members into `running`; whether tokens were produced."""
        before = group.forked
        produces = group.advance(self.allocator, (branches or {}).get(group.request.id))
        if group.forked and not before:
            at = running.index(group.seqs[0])
            running[at : at + 1] = [seq for seq in group.seqs if seq is group.seqs[0] or seq not in running]
            self.count(running)
        return produces

    def unservable(self, request: Request, stored: int, longest: int, limits: Mapping[str, int]) -> str | None:
        """Why the sequences of a request can never run together, or None.

        Args:
            stored: tokens that must fit for the leader, its promise included.
            longest: tokens of each sequence stored at its end.
            limits: limits on the sequences of a step, by name.
        """
        allocator, n, unit = self.allocator, request.n, self.allocator.block_size
        if not allocator.can_fork:
            return f"n = {n}: the allocator, as it is configured, can't fork a sequence"
        for key, limit in limits.items():
            if n > limit:
                return f"n = {n} answers that are computed in one step exceed {key} = {limit}"
        slots = n * (allocator.footprint(stored) or 0)
        if allocator.forks_share:  # the leader's slots, and those of the others that are not shared
            leader, each = (allocator.footprint(tokens) or 0 for tokens in (stored, longest))
            slots = leader + (n - 1) * (each - (request.prompt_len // unit * unit if unit else request.prompt_len))
        if slots > allocator.capacity:
            return f"n = {n} answers take {slots} slots and never fit the KV pool of {allocator.capacity}"
        return None
