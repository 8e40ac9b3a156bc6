"""The commands of `python -m harness` beside running a job: each with the words that it takes."""

from __future__ import annotations

COMMANDS = {
    "inspect": "FILE [workload.KEY=VALUE]...",
    "compile": "",
    "report": "DIR [figures=paper] [exports=[trace,benchmark]] [tables=[csv,parquet]]",
    "compare": "DIR DIR [DIR]... [csv=FILE]...",
    "resume": "DIR [hydra/launcher=NAME]...",
    "list": "[KIND]",
    "tables": "DIR",
    "check": "[FAMILY|KEY=VALUE]...",
}
