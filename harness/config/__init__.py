"""Checks of a configuration before any work: key by key against the schema, and keys against each other."""

import harness.config.composition  # noqa: F401
from harness.config.check import asked_by, check, settle, settled
from harness.config.effect import without_effect

__all__ = ["asked_by", "check", "settle", "settled", "without_effect"]
