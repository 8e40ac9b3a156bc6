"""How the answers of a group go on: samples drawn from the model's distribution, or the beams of a search."""

from __future__ import annotations

import numpy as np
import torch

from harness.workload.streams import stream
from schedulers.group import Branch, Group


def branches_of(group: Group, logits: torch.Tensor, seed: int) -> list[Branch]:
    """One branch for each answer that the group wants.

    Args:
        group: of which a token is due.
        logits: ``[1, vocabulary]`` of the prompt, or ``[size, vocabulary]``, a row for each member.
        seed: of the run.
    """
    if group.request.use_beam_search:
        return _beams(group, logits)
    return _samples(group, logits, seed)


def _beams(group: Group, logits: torch.Tensor) -> list[Branch]:
    """The likeliest of all ways to go on by one token, scores being sums of log-probabilities.

    No answer ends before its last token here, so the search of `transformers` (which keeps as many more candidates as
    may end) chooses the same ones.
    """
    scores = torch.tensor([seq.score for seq in group.seqs[: len(logits)]], dtype=torch.float32, device=logits.device)
    scores = scores[:, None] + torch.log_softmax(logits.float(), dim=-1)
    best = scores.flatten().topk(group.size)
    vocabulary = logits.shape[1]
    chosen = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Branch(at // vocabulary, at % vocabulary, score) for at, score in chosen]


def _samples(group: Group, logits: torch.Tensor, seed: int) -> list[Branch]:
    """A token for each answer, at temperature 1, by a draw that only (seed, request, answer, position) decide."""
    odds = torch.softmax(logits.double(), dim=-1).cumsum(-1).cpu().numpy()
    branches, position = [], group.seqs[0].num_tokens
    for i in range(group.size):
        parent = i if group.forked else 0
        draw = stream(seed, "samples", group.request.id, i, position).random()
        token = int(np.searchsorted(odds[parent], draw * odds[parent, -1], side="right"))
        branches.append(Branch(parent, min(token, odds.shape[1] - 1)))
    return branches
