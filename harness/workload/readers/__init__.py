"""Readers of published traces: the format is told by header or keys, never by the file's name."""

from harness.workload.readers.detect import KNOWN
from harness.workload.readers.trace import Reading, Trace, read_trace

__all__ = ["KNOWN", "Reading", "Trace", "read_trace"]
