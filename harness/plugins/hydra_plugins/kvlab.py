"""Our plug-in for Hydra, which takes them from packages of this name only."""

from harness.sweep import Sweep


class Planned(Sweep):
    """`hydra/sweeper=planned`."""
