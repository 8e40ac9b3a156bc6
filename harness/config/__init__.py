"""The schema: every key with its kind, range and unit, and the checks of a configuration before any work."""

import harness.config.composition  # noqa: F401
from harness.config.check import asked_by, check, settle, settled
from harness.config.effect import without_effect

__all__ = ["asked_by", "check", "settle", "settled", "without_effect"]
