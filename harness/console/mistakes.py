"""Turns what Hydra says of a mistake on the command line into an answer: what is wrong, and the nearest right thing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.console.arguments import with_quotes
from harness.console.commands import COMMANDS
from harness.console.signals import interrupt_in
from harness.errors import HarnessError
from harness.groups import files, options, written
from harness.groups.pairs import MOVED, parts
from harness.lookup import closest, near, nearest


@contextmanager
def explained(experiments: Path) -> Iterator[None]:
    """Re-raise Hydra's errors as `HarnessError`.

    Args:
        experiments: the folder of the config groups.
    """
    try:
        yield
    except MissingConfigException as error:
        raise HarnessError(_missing(error, experiments)) from error
    except OverrideParseException as error:
        raise HarnessError(_no_override(str(error.override), experiments)) from error
    except (ConfigCompositionException, OmegaConfBaseException, HydraException) as error:
        if interrupt := interrupt_in(error):
            raise interrupt from error
        raise HarnessError(_composition(error, experiments)) from error
    except PermissionError as error:
        raise HarnessError(f"no permission to write {error.filename}; choose another folder with hydra.run.dir=DIR "
                           "(hydra.sweep.dir=DIR for a sweep)") from error  # fmt: skip
    except OSError as error:
        where = f"{error.filename}; choose another folder with hydra.run.dir=DIR (hydra.sweep.dir=DIR for a sweep)"
        raise HarnessError(f"{error.strerror}: {where}" if error.filename else str(error)) from error


def _no_override(word: str, experiments: Path) -> str:
    """What a word was meant to be: with `=` a value that needs quotes, else a choice of some group, or a command."""
    if typed := with_quotes(word):
        return f"{word!r} is no override: its value needs quotes: {typed}"
    choices = _choices(experiments)
    close = closest(word, [*choices, *COMMANDS], cutoff=0.7)
    if close:
        meant = choices.get(close[0], close[0])
        return f"{word!r} is no override; did you mean: python -m harness {meant}"
    return f"{word!r} is no override: write key=value, as in seed=1{nearest(word, COMMANDS)}; see --help and list"


def _choices(experiments: Path) -> dict[str, str]:
    """``allocator=paged`` by ``paged``, of all groups; experiments win."""
    groups = sorted(experiments.iterdir(), key=lambda group: group.name == "experiment")
    return {name: f"{group.name}={name}" for group in groups for name in options(group)}


def _missing(error: MissingConfigException, experiments: Path) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    folder = experiments / group
    if not group or not folder.is_dir():
        groups = [path.name for path in experiments.iterdir() if path.is_dir()]
        return f"there is no config {error.missing_cfg_file!r}{nearest(group or name, groups)}"
    if group == "system" and name in MOVED:
        return f"there is no system {name!r} any more; it is its parts: system={MOVED[name]}"
    if group == "system" and "+" in name:
        parts(name)  # tells what is wrong with it
    names = [option for option in error.options or [] if not option.startswith("_")]  # those of --config-dir, too
    other = _choices(experiments).get(name)
    hint = f"did you mean {other}?" if other else near(name, names, most=3)
    return f"there is no {group} {name!r}{f'; {hint}' if hint else ''}; {group}: {', '.join(names)}"


def _composition(error: Exception, experiments: Path) -> str:
    text = str(error)
    found = re.search(r"Could not override '([^']+)'|override '([^']+)'|full_key: (\S+)", text)
    if not found:
        return text.strip().split("\n")[0]
    key = next(group for group in found.groups() if group)
    keys = _keys(experiments)
    if key in keys:
        group, _, rest = key.partition(".")
        having = [f"{group}={path.stem}" for path in files(experiments / group) if rest in _dotted(written(path))]
        if having and text.startswith("Could not override"):
            return f"the {group} that is chosen has no key {rest!r}; those that do: {', '.join(having)}"
        return text.strip().split("\n")[0]  # the key is right, its value is not
    leaf = key.rpartition(".")[2]
    same_leaf = [known for known in keys if known.rpartition(".")[2] == leaf]
    hint = f"; did you mean {' or '.join(same_leaf)}?" if same_leaf else nearest(key, keys)
    if key.startswith(("allocator.", "scheduler.")) and text.startswith("Could not override"):
        hint = f"{hint}; one of your own class is added with +{key}=VALUE"
    return f"there is no config key {key!r}{hint if len(hint) < 300 else '; see python -m harness --cfg job'}"


def _keys(experiments: Path) -> list[str]:
    """Every dotted key of the schema, and every group."""
    from harness.schema.keys import KEYS, SECTIONS

    return sorted({*KEYS, *SECTIONS, *(path.name for path in experiments.iterdir() if path.is_dir())})


def _dotted(config: object, prefix: str = "") -> Iterator[str]:
    if isinstance(config, DictConfig):
        for key in map(str, config):
            yield f"{prefix}{key}"
            yield from _dotted(config._get_node(key), f"{prefix}{key}.")
