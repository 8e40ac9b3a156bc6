"""The schema: every key with its kind, range and unit, and the checks of a configuration before any work."""

from pathlib import Path

from harness.config.check import asked_by, check, settle, settled
from harness.config.effect import without_effect

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
__all__ = ["EXPERIMENTS", "asked_by", "check", "settle", "settled", "without_effect"]
