"""The one error that reading or generating a workload raises."""

from harness.errors import HarnessError


class WorkloadError(HarnessError):
    """A workload that cannot be built. The message names the file and line, or the config key, and the way out."""
