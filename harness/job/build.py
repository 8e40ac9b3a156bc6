"""From the configuration to objects. Plug-ins are named by `_target_` and need no registration."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from allocators.base import Allocator
from allocators.checker import Checked
from allocators.layout import KVLayout
from harness import compiled
from harness.devices import layout_for
from harness.errors import HarnessError
from harness.lookup import locate, nearest
from harness.runner.kv_buffers import kv_buffers
from harness.schema import plugins
from schedulers.base import Scheduler
from schedulers.request import Request
from schedulers.reservation import Reservation, on_demand


def build_allocator(cfg: DictConfig, capacity: int, asked: Collection[str] = (),
                    layout: KVLayout | None = None) -> Allocator:  # fmt: skip
    """The allocator of `cfg`, wrapped in the checker with `debug=true`.

    Args:
        cfg: the whole configuration.
        capacity: size of the pool, in units of the layout.
        asked: dotted keys given on the command line. A third-party plug-in gets these, but not the other keys of the
            group it replaces unless it has such arguments.
        layout: what the model keeps; None = every token in every layer, in slots.

    Raises:
        HarnessError: no such class, or arguments it refuses.
    """
    cls = locate(cfg.allocator._target_, "allocator._target_")
    compiled.check(cfg, cls)
    arguments = _arguments(cls, cfg.allocator, "allocator", asked)
    if layout is None and "token_bytes" in plugins.arguments(cls):
        arguments = kv_buffers(layout_for(cfg)) | arguments
    allocator = make_allocator(cls, arguments, capacity, cfg.max_model_len, layout, cfg.scheduler.max_num_seqs)
    return Checked(allocator) if cfg.debug else allocator  # type: ignore[abstract]


def make_allocator(cls: Any, arguments: Mapping[str, Any], capacity: int, max_model_len: int, layout: KVLayout | None,
                   max_num_seqs: int) -> Allocator:  # fmt: skip
    """An allocator of class `cls`.

    Args:
        arguments: further arguments of the class.
        capacity: size of the pool, in units of the layout.
        layout: what the model keeps; None = every token in every layer, in slots.
        max_num_seqs: most sequences at once; if the class takes no layout, room for their states is set aside.

    Raises:
        HarnessError: the class refuses its arguments.
    """
    takes, given, slots = plugins.arguments(cls), dict(arguments), capacity
    within = layout and layout.within(max_model_len)
    if layout and within and layout.uniform == within.uniform:  # else the unit of the pool would change
        layout = within
    if layout and "token_bytes" in takes:  # sizes in bytes follow from the model
        given = kv_buffers(layout) | given
    if "layout" in takes:
        given["layout"] = layout
    elif layout and not layout.uniform:
        slots = _slots(layout, capacity, max_model_len, max_num_seqs)
    allocator: Allocator = _construct(cls, "allocator", capacity=slots, max_model_len=max_model_len, **given)
    if layout and "layout" not in takes:
        allocator.serve(layout, capacity)
    return allocator


def _slots(layout: KVLayout, capacity: int, max_model_len: int, max_num_seqs: int) -> int:
    """Slots for an allocator that takes no layout, after setting aside the states of `max_num_seqs` sequences.

    Raises:
        HarnessError: nothing is left.
    """
    lanes = max_num_seqs if layout.state_bytes else 0
    left = capacity - lanes * layout.state_bytes
    if left < layout.token_bytes or left < 0:
        raise HarnessError(
            f"the states of scheduler.max_num_seqs={lanes} sequences take {lanes * layout.state_bytes:,} bytes, the KV "
            f"pool has {capacity:,}; lower max_num_seqs, raise kv_bytes or kv_slots, or use an allocator that knows "
            "layouts"
        )
    return left // layout.token_bytes if layout.token_bytes else lanes * max_model_len


def build_scheduler(cfg: DictConfig, capacity: int, asked: Collection[str] = (),
                    layout: KVLayout | None = None) -> Scheduler:  # fmt: skip
    """The scheduler of `cfg` over its allocator.

    Raises:
        HarnessError: no such class, arguments that it refuses, or a reservation that its allocator does not support.
    """
    allocator = build_allocator(cfg, capacity, asked, layout)
    reservation = locate(cfg.reservation._target_, "reservation._target_")
    cls = locate(cfg.scheduler._target_, "scheduler._target_")
    compiled.check(cfg, cls)
    arguments = _arguments(cls, cfg.scheduler, "scheduler", asked)
    return make_scheduler(cls, arguments, allocator, reservation, cfg.max_model_len, cfg.allocator._target_)


def make_scheduler(cls: Any, arguments: Mapping[str, Any], allocator: Allocator, reservation: Reservation,
                   max_model_len: int, name: str) -> Scheduler:  # fmt: skip
    """A scheduler of class `cls` over an allocator.

    Args:
        arguments: further arguments of the class.
        name: the allocator's name, for messages.

    Raises:
        HarnessError: the class refuses its arguments, or the allocator does not support the reservation.
    """
    if reservation is on_demand and not allocator.grows:
        raise HarnessError(
            f"reservation=on_demand needs an allocator that grows a sequence, and {name} does not; "
            "use reservation=exact, pow2, max_tokens or max_model_len"
        )
    if reservation is not on_demand and not allocator.reserves:
        raise HarnessError(f"{name} keeps no promise of slots: use reservation=on_demand")
    scheduler: Scheduler = _construct(cls, "scheduler", allocator=allocator, reservation=reservation,
                                      max_model_len=max_model_len, **arguments)  # fmt: skip
    return scheduler


def resolve_lane_slots(cfg: DictConfig, requests: Iterable[Request]) -> DictConfig:
    """`cfg` with `allocator.lane_slots=longest` replaced by the longest request's tokens, prompt and output."""
    if OmegaConf.select(cfg, "allocator.lane_slots") != "longest":
        return cfg
    longest = max(request.prompt_len + request.output_len for request in requests)
    return OmegaConf.merge(cfg, {"allocator": {"lane_slots": longest}})  # type: ignore[return-value]


def _arguments(cls: Any, group: DictConfig, key: str, asked: Collection[str]) -> dict[str, Any]:
    """The group's values as arguments, without those that the plug-in does not take and that were not asked for."""
    values: Mapping[str, Any] = OmegaConf.to_container(group, resolve=True)  # type: ignore[assignment]
    arguments = {name: value for name, value in values.items() if name != "_target_"}
    known = plugins.arguments(cls)
    any_more = plugins.takes_any(cls) and f"{key}._target_" not in asked
    given = [name for name in arguments if f"{key}.{name}" in asked]
    for name in given:
        if name not in known and not plugins.takes_any(cls):
            raise HarnessError(f"{key}.{name}: {cls.__name__} has no such argument{nearest(name, known)}")
    kept = {name: value for name, value in arguments.items() if name in known or name in given or any_more}
    return {name: _part(value, f"{key}.{name}") for name, value in kept.items()}


def _part(value: Any, key: str) -> Any:
    """The value, or the object that its `_target_` names, such as a custom order for `scheduler.policy`."""
    if not isinstance(value, Mapping) or "_target_" not in value:
        return value
    cls = locate(value["_target_"], f"{key}._target_")
    return _construct(cls, key, **{name: part for name, part in value.items() if name != "_target_"})


def _construct(cls: Any, key: str, **arguments: Any) -> Any:
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        text = f"{key}: {getattr(cls, '__name__', cls)} refuses its arguments: {error}"
        if isinstance(error, TypeError):  # whose message may name no argument
            plain = {name: value for name, value in arguments.items() if isinstance(value, str | float | int | None)}
            text += f" ({', '.join(f'{name}={value!r}' for name, value in plain.items())})"
        raise HarnessError(text) from error
