"""Workloads: real traces of many formats, or lengths and arrivals drawn from named random streams."""

from harness.workload.build import Workload, build_workload
from harness.workload.errors import WorkloadError
from harness.workload.export import export
from harness.workload.prefix import unbounded_hit_rate
from harness.workload.streams import prompt_tokens, stream

__all__ = ["Workload", "WorkloadError", "build_workload", "export", "prompt_tokens", "stream", "unbounded_hit_rate"]
