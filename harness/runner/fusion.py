"""What can be said shorter in a traced model: idioms of decoders become one kernel each, dead inputs are overwritten.

Between two matrix products there is little arithmetic and much memory: every operation fetches fresh pages and reads
what the last one has just written. Idioms are stated as they are written in `transformers`; a model
that writes them differently loses nothing but speed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node, symbolic_trace
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

aten = torch.ops.aten

IN_PLACE: dict[Any, Callable[..., torch.Tensor]] = {
    aten.relu.default: torch.relu_,
    aten.silu.default: torch._C._nn.silu_,
    aten.tanh.default: torch.tanh_,
    aten.add.Tensor: torch.Tensor.add_,
    aten.mul.Tensor: torch.Tensor.mul_,
}
# Operations whose result has memory of its own, and those that look at their first argument's in another shape.
MAKERS = {aten.linear.default, aten.addmm.default, aten.mm.default, aten.layer_norm.default, aten.embedding.default,
          aten.gelu.default, aten.index.Tensor, torch.ops.kvlab.attention.default, torch.ops.kvlab.mixer.default,
          *IN_PLACE, *IN_PLACE.values()}  # fmt: skip
VIEWS = {aten.view.default, aten.transpose.int, aten.unsqueeze.default}


def _rms_norm(x: Any, weight: Any, epsilon: Any) -> Any:
    spread = aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [-1], True)
    return aten.mul.Tensor(weight, aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(spread, epsilon))))


def _rms_norm_around_one(x: Any, weight: Any, epsilon: Any) -> Any:
    """As Gemma's models write it."""
    spread = aten.mean.dim(aten.pow.Tensor_Scalar(x, 2), [-1], True)
    scaled = aten.mul.Tensor(x, aten.rsqrt.default(aten.add.Tensor(spread, epsilon)))
    return aten.mul.Tensor(scaled, aten.add.Tensor(weight, 1.0))


def _rotate(x: Any, cos: Any, sin: Any, half: Any, end: Any) -> Any:
    first, second = aten.slice.Tensor(x, 3, 0, half), aten.slice.Tensor(x, 3, half, end)
    turned = aten.cat.default([aten.neg.default(second), first], -1)
    return aten.add.Tensor(aten.mul.Tensor(x, cos), aten.mul.Tensor(turned, sin))


def fuse(graph: Graph) -> None:
    """Replace idioms by kernels, for float32 on a CPU with numba."""
    try:
        from kvlab_kernels import numba_rows
    except ImportError:
        return
    for x, weight, epsilon, out in _matches(graph, _rms_norm):
        if size_of(weight) == size_of(x)[-1:]:
            _replace(graph, out, numba_rows.rms_norm, (x, weight, epsilon))
    for x, weight, epsilon, out in _matches(graph, _rms_norm_around_one):
        if size_of(weight) == size_of(x)[-1:]:
            name = f"{weight.target}_and_one"
            owner: Any = graph.owning_module
            owner.register_buffer(name, _value(weight) + 1)
            with graph.inserting_before(out):
                whole = graph.get_attr(name)
            _replace(graph, out, numba_rows.rms_norm, (x, whole, epsilon))
    MAKERS.add(numba_rows.rms_norm)
    for x, cos, sin, half, _, out in _matches(graph, _rotate):
        if size_of(x)[-1] == 2 * half and size_of(cos)[:2] == (1, 1) and _is_fresh(x, users=3):
            _replace(graph, out, numba_rows.rotate, (x, cos, sin))
    graph.eliminate_dead_code()
    if any(node.target in (numba_rows.rms_norm, numba_rows.rotate) for node in graph.nodes):
        numba_rows.prepare()


def overwrite(graph: Graph) -> None:
    """Let operations write into an input of the same size that nobody reads after them."""
    for node in graph.nodes:
        if node.target not in IN_PLACE or node.kwargs or not all(map(_is_float32, [node, *node.all_input_nodes])):
            continue
        for i, source in enumerate(node.args[:2]):
            if isinstance(source, Node) and size_of(source) == size_of(node) and _is_fresh(source):
                others = node.args[:i] + node.args[i + 1 :]
                node.args, node.target = (source, *others), IN_PLACE[node.target]
                break


def _matches(graph: Graph, idiom: Callable[..., Any]) -> list[list[Any]]:
    """The arguments of each occurrence of an idiom, and the node that computes it."""
    pattern = symbolic_trace(idiom).graph
    asked = [node for node in pattern.nodes if node.op == "placeholder"]
    found = SubgraphMatcher(pattern).match(graph)
    matches = [[*(m.nodes_map[node] for node in asked), m.returning_nodes[0]] for m in found]
    return [m for m in matches if all(_is_float32(node) for node in m if isinstance(node, Node))]


def _replace(graph: Graph, node: Node, kernel: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with graph.inserting_before(node):
        new = graph.call_function(kernel, args)
    new.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(new)


def _is_fresh(node: Node, users: int = 1) -> bool:
    """Whether nobody but the `users` of a node looks at its memory."""
    while node.target in VIEWS and len(node.users) == users:
        (node, *_), users = node.all_input_nodes, 1
    return node.target in MAKERS and len(node.users) == users


def _is_float32(node: Node) -> bool:
    value = _value(node)
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.device.type == "cpu"


def _value(node: Node) -> Any:
    if node.op == "get_attr":
        return getattr(node.graph.owning_module, str(node.target))
    return node.meta.get("val")


def size_of(node: Node) -> tuple[Any, ...]:
    return tuple(_value(node).shape)
