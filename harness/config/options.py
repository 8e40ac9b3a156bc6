"""Words of the command line that choose an option of a group, where Hydra would answer with a traceback."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException

from harness.errors import HarnessError
from harness.groups import options
from harness.installation import EXPERIMENTS
from harness.lookup import nearest

OPTIONAL = ("experiment", "server", "system")  # groups of which none may be chosen, as is the default


def chosen(words: Sequence[str]) -> list[str]:
    """The words with `system=null` as Hydra writes it: `~system`.

    Raises:
        HarnessError: a group is given a number, true or false, nothing where it needs an option, or a `_base`.
    """
    return [_chosen(word) for word in words]


def _chosen(word: str) -> str:
    group, _, text = word.partition("=")
    if not text or not (EXPERIMENTS / group).is_dir() or group.startswith((".", "/")):
        return word
    try:
        override = OverridesParser.create().parse_override(word)
    except OverrideParseException:  # Hydra's own business
        return word
    if override.is_sweep_override():
        return word
    value = override.value()
    if value is None and group in OPTIONAL:
        return f"~{group}"
    if value is None or isinstance(value, bool | int | float) or text.startswith("_"):
        raise HarnessError(f"{word}: there is no {group} {text!r}{nearest(text, options(EXPERIMENTS / group))}")
    return word
