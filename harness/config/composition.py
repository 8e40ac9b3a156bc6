"""What Hydra needs of ours before it composes a configuration: its plug-ins' place, and resolvers."""

from __future__ import annotations

import sys

from omegaconf import OmegaConf

from harness.installation import EXPERIMENTS, PACKAGE

sys.path.append(str(PACKAGE / "plugins"))  # the sweeper, and systems that are named by their parts
OmegaConf.register_new_resolver("either", lambda one, other: one or other, replace=True)
OmegaConf.register_new_resolver("repository", lambda: str(EXPERIMENTS.parent), replace=True)
