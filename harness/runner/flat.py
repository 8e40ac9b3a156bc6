"""A model as one flat list of tensor operations, without the modules around them.

A Hugging Face causal LM of 8 layers calls some 130 modules a step, each with hooks, wrappers and argument checks that
compute nothing; with few lanes they take longer than the arithmetic. So the model is traced once, with a symbolic
number of tokens and our attention as a leaf, and the operations that are left are written out as one Python function.
This knows no architecture. A model that can't be traced (its control flow asks the data) runs as it is.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from harness.runner.attention import Calls, StepContext, Tracing, attend, handling, mix
from harness.runner.cache import PackedCache, forward_of
from harness.runner.dense import through
from harness.runner.fusion import fuse, overwrite

aten = torch.ops.aten
MARKS = {torch.ops.kvlab.attention.default: "attend", torch.ops.kvlab.mixer.default: "mix"}
# (ids [T], positions [T], due [n]: which of them, all int64; where everything lies) -> logits [n, vocabulary]
Step = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, StepContext], torch.Tensor]


def as_it_is(model: Any) -> Step:
    """A step that calls the model."""
    forward = forward_of(model)

    def step(ids: torch.Tensor, positions: torch.Tensor, due: torch.Tensor, context: StepContext) -> torch.Tensor:
        if context.rows is not None:
            return through(forward, context.rows, ids, positions, due, context)
        with handling(context):
            return forward(ids, positions, due, PackedCache(positions))

    return step


def flatten(model: Any, calls: Calls) -> Step:
    """A step that does what the model does, traced from it; its attention must be ours.

    Args:
        calls: of its attention, as the probe found them.

    Raises:
        Exception: whatever the tracer met; there is no list of what models may do.
    """
    forward = forward_of(model)

    def step(ids: torch.Tensor, positions: torch.Tensor, due: torch.Tensor, context: Any) -> torch.Tensor:
        return forward(ids, positions, due, PackedCache(positions))

    device = next(model.parameters()).device
    # The sizes say what is what: 0 and 1 would be taken for constants, equal ones for the same.
    ids, positions, due = (torch.arange(n, device=device) for n in (7, 7, 5))
    with torch.inference_mode(False), torch.no_grad(), handling(Tracing(calls)), _quiet():
        trace = make_fx(step, tracing_mode="symbolic", pre_dispatch=True, _allow_non_fake_inputs=True)
        traced = trace(ids, positions, due, None)
    _simplify(traced)
    fuse(traced.graph)
    overwrite(traced.graph)
    return _written_out(traced)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it the tracer says nothing of what it can't run: that is raised, and told by whoever asked for a trace."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


def _simplify(traced: GraphModule) -> None:
    """Take out what computes nothing: casts to the dtype there is, dropout at rest, factors of one."""
    graph: Graph = traced.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and _is_no_op(node):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()


def _is_no_op(node: Node) -> bool:
    source = node.args[0] if node.args else None
    before = source.meta.get("val") if isinstance(source, Node) else None
    after = node.meta.get("val")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return False
    if node.target is aten.dropout.default:
        return node.args[2] is False
    if node.target not in (aten.to.dtype, aten.to.device, aten.to.dtype_layout, aten.mul.Tensor):
        return False
    by_one = node.target is not aten.mul.Tensor or node.args[1] == 1
    return bool(by_one and before.dtype == after.dtype and before.device == after.device)


def _written_out(traced: GraphModule) -> Step:
    """The graph as the source of a Python function, one line per operation, compiled."""
    names: dict[str, Any] = {"attend": attend, "mix": mix, "inf": float("inf"), "nan": float("nan")}
    lines: list[str] = []
    last_use = {source: node for node in traced.graph.nodes for source in node.all_input_nodes}
    inputs = [node.name for node in traced.graph.nodes if node.op == "placeholder"]

    def shown(value: Any) -> str:
        if isinstance(value, Node):
            return value.name
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(shown(item) for item in value) + "]"
        if isinstance(value, (int, float, str, bool, type(None))):
            return repr(value)
        names[name := f"constant_{len(names)}"] = value  # a dtype, a device, a layout
        return name

    for node in traced.graph.nodes:
        arguments = ", ".join([*map(shown, node.args), *(f"{key}={shown(v)}" for key, v in node.kwargs.items())])
        if node.op == "get_attr":
            names[node.name] = operator.attrgetter(node.target)(traced)
        elif node.op == "output":
            lines.append(f"return {shown(node.args[0])}")
        elif node.op == "call_function":
            if node.target in MARKS:
                call = f"{MARKS[node.target]}({inputs[-1]}, {arguments})"
            else:
                name = "call_" + getattr(node.target, "__name__", "function").replace(".", "_")
                names[name] = _direct(node.target)
                call = f"{name}({arguments})"
            lines.append(f"{node.name} = {call}")
        over = [s.name for s in node.all_input_nodes if last_use[s] is node and s.op not in ("placeholder", "get_attr")]
        if over and node.op != "output":  # memory that is free again at once stays in the cache
            lines.append(f"del {', '.join(over)}")
    source = f"def flat({', '.join(inputs)}):\n    " + "\n    ".join(lines)
    exec(compile(source, "<flat model>", "exec"), names)
    names["flat"].source = source
    return names["flat"]


def _direct(target: Any) -> Any:
    """PyTorch's own Python function of an operator, which costs a third of what a call through its schema does."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    name = target._schema.name.removeprefix("aten::")
    if name == "sym_size":
        return torch.Tensor.size
    for room in (torch, torch._C._nn, torch.Tensor):
        function = getattr(room, name, None)
        if type(function).__name__ in ("builtin_function_or_method", "method_descriptor"):  # made from the schema
            return function
    return target
