"""Every job is checked before the first one runs, so that a mistake in the last is told at once.

Hydra composes a job in tens of milliseconds. What takes that long is the choice of options (`system=vllm`), which most
jobs of a sweep share: it is composed once, and a job's own values are set in a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict

from harness.config import EXPERIMENTS, asked_by, check, settle
from harness.errors import HarnessError
from harness.mistakes import explained
from harness.sweep import planned

MOST_TOLD = 10  # mistakes


class Check(Callback):
    """Hydra callback: ends the program with exit code 2 before anything is written, where a job has a mistake.

    Hydra turns what a callback raises into a warning, but for an exit.
    """

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        _told(settle(config, asked_by(config.hydra.overrides.task))[1])

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        _told(check_jobs(config, planned(config)))


def check_jobs(config: DictConfig, jobs: Sequence[Sequence[str]]) -> list[str]:
    """The mistakes in the jobs of a sweep, each once, with the first job that has it.

    Args:
        config: the sweep's own configuration, as Hydra composed it.
        jobs: the overrides of each job.
    """
    loader = GlobalHydra.instance().config_loader()
    parse = OverridesParser.create(loader).parse_override
    parsed = {text: parse(text) for text in dict.fromkeys(text for job in jobs for text in job)}
    chosen: dict[tuple[str, ...], DictConfig] = {}

    def composed(job: Sequence[str]) -> DictConfig:
        choices = tuple(text for text in job if _chooses(loader, parsed[text]))
        if choices not in chosen:
            chosen[choices] = loader.load_sweep_config(config, list(choices))
            with open_dict(chosen[choices]):
                del chosen[choices]["hydra"]
        cfg = chosen[choices].copy()
        ConfigLoaderImpl._apply_overrides_to_config([parsed[text] for text in job if text not in choices], cfg)
        return cfg

    common = set(jobs[0]).intersection(*jobs[1:]) if len(jobs) > 1 else set()
    told: dict[str, str] = {}
    for number, job in enumerate(jobs):
        try:
            with explained(EXPERIMENTS):
                mistakes = check(composed(job), asked_by(job))
        except HarnessError as error:
            mistakes = [str(error)]
        own = " ".join(text for text in job if text not in common)
        for mistake in mistakes:
            told.setdefault(mistake, f"job {number} ({own}): {mistake}" if own else mistake)
    return list(told.values())


def _chooses(loader: Any, override: Override) -> bool:
    """Whether it chooses an option of a group, or is Hydra's own."""
    return override.is_hydra_override() or (
        loader.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
    )


def _told(mistakes: Sequence[str]) -> None:
    for mistake in mistakes[:MOST_TOLD]:
        print(f"error: {mistake}", file=sys.stderr)
    if len(mistakes) > MOST_TOLD:
        print(f"error: and {len(mistakes) - MOST_TOLD} more", file=sys.stderr)
    if mistakes:
        sys.exit(2)
