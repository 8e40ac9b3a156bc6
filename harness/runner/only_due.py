"""Of a traced model's last layer, only what is asked: after its attention, nobody reads tokens that have no logits due.

Keys and values of a prompt's tokens are needed in every layer, what follows from them in the last one is not: of a
prompt, only the last token's logits. So the choice of those tokens moves up, past everything that treats tokens one
by one, to where the last layer meets its attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from harness.runner.fusion import size_of

aten = torch.ops.aten


def only_due(graph: Graph) -> None:
    """Move the choice of tokens ``x[:, due]`` up, if there is one."""
    due = [node for node in graph.nodes if node.op == "placeholder"][2]
    choices = [node for node in graph.nodes if node.target is aten.index.Tensor and list(node.args[1]) == [None, due]]
    if len(choices) != 1:
        return
    (choice,) = choices
    source = choice.args[0]
    tokens = size_of(source)[:2]
    inside: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.users and all(user in inside or user is choice for user in node.users) and _by_token(node, tokens):
            inside.add(node)
    if source not in inside:
        return
    chosen: dict[Node, Node] = {}
    for node in [node for node in graph.nodes if node in inside]:
        for outside in [each for each in node.all_input_nodes if each not in inside and size_of(each)[:2] == tokens]:
            if outside not in chosen:
                with graph.inserting_before(node):
                    chosen[outside] = graph.call_function(aten.index.Tensor, (outside, [None, due]))
                chosen[outside].meta["val"] = outside.meta["val"]  # all sizes inside go on being those of all tokens
            node.replace_input_with(outside, chosen[outside])
    choice.replace_all_uses_with(source)
    graph.erase_node(choice)


def _by_token(node: Node, tokens: tuple[Any, ...]) -> bool:
    """Whether a node computes ``[1, T, …]`` from nothing but the same token of such inputs and from parameters."""
    if node.op != "call_function" or not _has(node, tokens) or not _keeps_to_tokens(node):
        return False
    inputs = [each for each in node.all_input_nodes if each.op != "get_attr"]
    return all(_has(each, tokens) and len(size_of(each)) == len(size_of(node)) for each in inputs)


def _has(node: Node, tokens: tuple[Any, ...]) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor) and size_of(node)[:2] == tokens


def _keeps_to_tokens(node: Node) -> bool:
    if node.target is aten.layer_norm.default:
        return len(node.args[1]) == 1  # type: ignore[arg-type]
    if node.target is aten.mean.dim:
        return list(node.args[1:]) == [[-1], True]
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target in (aten.linear.default, aten.to.dtype) or torch.Tag.pointwise in node.target.tags
    return getattr(node.target, "__name__", "") == "rms_norm"
