"""`system=static+paged+on_demand`: a scheduler, an allocator and a reservation, each by its name, as one system.

Hydra looks for the options of a group in sources, folders mostly. This source has those systems that are nothing but
their parts, so that they can stand beside published ones in a sweep: in any order, and what is not named stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from harness.errors import HarnessError
from harness.groups import options
from harness.installation import EXPERIMENTS
from harness.lookup import near

Names = list[str]
PARTS = ("allocator", "reservation", "scheduler")
MOVED = {  # systems of version 0.1 that were no more than their parts
    "best_fit_exact": "best_fit+exact",
    "buddy_exact": "buddy+exact",
    "buddy_max_model_len": "buddy+max_model_len",
    "buddy_pow2": "buddy+pow2",
    "continuous_contiguous": "continuous+contiguous+max_model_len",
    "first_fit_compacting": "first_fit_compacting+exact",
    "first_fit_exact": "first_fit+exact",
    "first_fit_growing": "first_fit_growing+on_demand",
    "first_fit_rebuild": "rebuild+first_fit+exact",
    "paged_cached": "paged_cached+on_demand",
    "paged_exact": "paged+exact",
    "paged_on_demand": "paged+on_demand",
    "slab_max_model_len": "contiguous+max_model_len",
    "static_contiguous": "static+contiguous+max_model_len",
    "static_paged": "static+paged+on_demand",
    "virtual_on_demand": "virtual+on_demand",
}


def parts(system: str) -> dict[str, str]:
    """The options of `static+paged`, by group.

    Raises:
        HarnessError: a part is no option, or two are of one group.
    """
    known = {name: group for folder in _folders() for group in PARTS for name in options(folder / group)}
    found: dict[str, str] = {}
    for name in system.split("+"):
        if name not in known:
            hint = near(name, known) or f"its parts are names of an {', a '.join(PARTS)}"
            raise HarnessError(f"system={system}: there is no {name!r}; {hint}")
        if other := found.get(known[name]):
            raise HarnessError(f"system={system}: {other} and {name} are both names of one group, {known[name]}")
        found[known[name]] = name
    return found


def _folders() -> Iterator[Path]:
    """Of options: ours, and the user's `--config-dir`."""
    yield EXPERIMENTS
    for place in Search.path.get_path() if Search.path else ():
        if place.provider == "command-line":
            yield Path(str(place.path).removeprefix("file://"))


class Pairs(ConfigSource):
    """The systems that are named by their parts."""

    @staticmethod
    def scheme() -> str:
        return "pairs"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return False

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        try:
            return group == "system" and "+" in name and bool(parts(name))
        except HarnessError:  # said where Hydra misses it
            return False

    def load_config(self, config_path: str) -> ConfigResult:
        defaults = [{f"override /{group}": name} for group, name in parts(config_path.rpartition("/")[2]).items()]
        return ConfigResult(self.provider, config_path, OmegaConf.create({"defaults": defaults}),
                            {"package": "_global_"})  # fmt: skip

    def list(self, config_path: str, results_filter: ObjectType | None) -> Names:
        return []


class Search(SearchPathPlugin):
    """Hydra asks `Pairs`, too."""

    path: ConfigSearchPath | None = None  # of this process, as Hydra's other state

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        Search.path = search_path
        search_path.append("kvlab", "pairs://")
