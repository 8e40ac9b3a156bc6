"""Our plug-ins for Hydra, which takes them from packages of this name only."""

from hydra.core.config_store import ConfigStore

from harness.groups.pairs import Pairs, Search
from harness.sweeps.sweep import LAUNCHERS, Sweep

__all__ = ["Pairs", "Planned", "Search"]


class Planned(Sweep):
    """`hydra/sweeper=planned`."""


# Those of experiments/hydra/launcher stand in the place of their packages' own; Hydra would warn that there are two.
for name in LAUNCHERS:
    ConfigStore.instance().repo.get("hydra", {}).get("launcher", {}).pop(f"{name}.yaml", None)
