"""A whole configuration against the schema: what it comes to, and every mistake in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from harness.config.together import together
from harness.errors import HarnessError
from harness.lookup import locate, near, nearest
from harness.schema import plugins
from harness.schema.key import Key, Values, at
from harness.schema.keys import KEYS, SECTIONS
from harness.schema.keys.plugins import HOME

OPEN = ("model.config", *HOME)  # sections with keys that are not the schema's to know


def settle(cfg: DictConfig, asked: Collection[str] = ()) -> tuple[DictConfig, list[str]]:
    """A copy of a configuration with every value as the program takes it, and the mistakes that were found.

    Args:
        cfg: the whole configuration; a section `hydra` is left out of the copy.
        asked: dotted keys given on the command line.

    Returns:
        The copy, in which what is mistaken is as it was, and a sentence for each mistake, which names its key.
    """
    cfg = cfg.copy()
    with open_dict(cfg):
        cfg.pop("hydra", None)
    return cfg, check(cfg, asked)


def check(cfg: DictConfig, asked: Collection[str] = ()) -> list[str]:
    """As `settle`, in place. Nothing is built for it, but the classes of allocator and scheduler are imported."""
    values, mistakes = plain(cfg)
    changed, wrong = dict[str, Any](), set[str]()
    for key, value in _present(values, mistakes):
        try:
            read = key.read(value)
        except ValueError as error:
            wrong.add(key.name)
            source = _source(cfg, key.name)
            if source[2:-1] not in wrong:  # the same mistake, handed on
                mistakes.append(f"{error} (it is {source})" if source else str(error))
        else:
            if type(read) is not type(value) or read != value:
                changed[key.name] = read
    mistakes += _unknown(values)
    if mistakes:
        return mistakes
    _set(cfg, changed)
    return _plugins(cfg, values, asked) or together(plain(cfg)[0] if changed else values)


def settled(cfg: DictConfig, asked: Collection[str] = ()) -> DictConfig:
    """As `settle`.

    Raises:
        HarnessError: there are mistakes; the message holds all of them.
    """
    cfg, mistakes = settle(cfg, asked)
    if mistakes:
        raise HarnessError("\n".join(mistakes))
    return cfg


def schema(values: Values) -> dict[str, Key]:
    """The keys that hold for a configuration: all, but those of classes that are not the program's own."""
    foreign = [name for name, home in HOME.items() if not str(at(values, f"{name}._target_")).startswith(home)]
    return {name: key for name, key in KEYS.items()
            if name.endswith("._target_") or name.partition(".")[0] not in foreign}  # fmt: skip


def asked_by(overrides: Iterable[str]) -> set[str]:
    """The dotted keys that overrides set."""
    return {override.partition("=")[0].lstrip("+~") for override in overrides}


def plain(cfg: DictConfig) -> tuple[dict[str, Any], list[str]]:
    """The values, interpolations resolved, and a mistake for each that can't be; it is left out."""
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True), []  # type: ignore[return-value]
    except OmegaConfBaseException:
        mistakes: list[str] = []
        return _resolved(cfg, "", mistakes), mistakes


def _resolved(node: Any, name: str, mistakes: list[str]) -> Any:
    if not isinstance(node, DictConfig):
        return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    values = {}
    for key in map(str, node):
        inner = f"{name}.{key}" if name else key
        try:
            values[key] = _resolved(node[key], inner, mistakes)
        except OmegaConfBaseException as error:
            why = str(error).split("\n")[0]
            mistakes.append(f"{inner}={_raw(node, key)}: its value can't be told: {why}; set {inner}")
    return values


def _present(values: Values, mistakes: list[str]) -> Iterator[tuple[Key, Any]]:
    """The schema's keys that are there, with their values; those that lack, or lie in what is no section, are told."""
    told: set[str] = set()
    for name, key in schema(values).items():
        *sections, leaf = name.split(".")
        holder: Any = values
        for depth, section in enumerate(sections, 1):
            inside, prefix = holder.get(section), ".".join(sections[:depth])
            if not isinstance(inside, Mapping):
                if prefix not in KEYS and (section in holder or key.needed) and prefix not in told:
                    told.add(prefix)
                    keys = ", ".join(one for one in KEYS if one.startswith(f"{prefix}."))
                    mistakes.append(f"{prefix}={inside}: {prefix} must be a group of keys: {keys}")
                break
            holder = inside
        else:
            if leaf in holder:
                yield key, holder[leaf]
            elif key.needed and not any(mistake.startswith(f"{name}=") for mistake in mistakes):
                mistakes.append(f"{name} is missing: it must be {key.takes}")


def _unknown(values: Values) -> Iterator[str]:
    """Keys that nobody knows in the schema's own sections."""
    for section in sorted(SECTIONS):
        if section.startswith(OPEN) or not isinstance(there := at(values, section), Mapping):
            continue
        known = [name[len(section) + 1 :] for name in (*KEYS, *SECTIONS) if name.startswith(f"{section}.")]
        for key in there:
            if key not in known:
                close = near(key, known, f"{section}.")
                said = close or f"the keys are {', '.join(name for name in known if '.' not in name)}"
                yield f"{section}.{key}: there is no such key; {said}"


def _plugins(cfg: DictConfig, values: Values, asked: Collection[str]) -> list[str]:
    """Settle what only the classes of allocator, reservation and scheduler can tell; the mistakes."""
    if cfg.simulation.compiled:
        from harness import compiled

        compiled.use()  # before anything of it is imported
    known, changed, mistakes = schema(values), dict[str, Any](), list[str]()
    for group in HOME:
        try:
            cls = locate(values[group]["_target_"], f"{group}._target_")
        except HarnessError as error:
            mistakes.append(str(error))
            continue
        takes = plugins.arguments(cls)
        for name, value in values[group].items():
            key = f"{group}.{name}"
            mistakes += _part(value, key)
            if name == "_target_" or (key in known and name in takes):
                continue
            if name not in takes and key in asked and not plugins.takes_any(cls):
                mistakes.append(f"{key}: {cls.__name__} has no such argument{nearest(name, takes)}")
            try:
                read = plugins.read(cls, name, value)
            except ValueError as error:
                mistakes.append(f"{key}={value}: {key} must be {error}, as {cls.__name__} is annotated")
            else:
                if type(read) is not type(value) or read != value:
                    changed[key] = read
    _set(cfg, changed)
    return mistakes


def _part(value: Any, key: str) -> Iterator[str]:
    """The mistakes in an argument that names a class of its own, as an order does for `scheduler.policy`."""
    if not isinstance(value, Mapping) or "_target_" not in value:
        return
    try:
        cls = locate(value["_target_"], f"{key}._target_")
    except HarnessError as error:
        yield str(error)
        return
    takes = plugins.arguments(cls)
    for name in value:
        if name != "_target_" and name not in takes and not plugins.takes_any(cls):
            yield f"{key}.{name}: {cls.__name__} has no such argument{nearest(name, takes)}"


def _set(cfg: DictConfig, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        OmegaConf.update(cfg, name, value, merge=False)


def _source(cfg: DictConfig, name: str) -> str:
    """``${seed}``: where a value is from that nobody wrote down as such; else nothing."""
    section, _, leaf = name.rpartition(".")
    holder = OmegaConf.select(cfg, section) if section else cfg
    raw = _raw(holder, leaf) if isinstance(holder, DictConfig) else None
    return raw if isinstance(raw, str) and "${" in raw else ""


def _raw(holder: DictConfig, key: str) -> Any:
    """A value as it is written, interpolations not resolved."""
    values: Any = OmegaConf.to_container(holder, resolve=False)
    return values.get(key)
