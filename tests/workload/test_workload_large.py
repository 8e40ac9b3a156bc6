"""A million rows: seconds and memory, measured in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

_MEASURE = """
import json, resource, sys, time
from harness.workload import build_workload
start = time.process_time()
count = len(build_workload({"path": sys.argv[1]}, 4096, 0).requests)
seconds = time.process_time() - start
print(json.dumps([count, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "header", ["arrived_at,num_prefill_tokens,num_decode_tokens", "TIMESTAMP,ContextTokens,GeneratedTokens"]
)
def test_a_million_rows(tmp_path: Path, header: str) -> None:
    random = np.random.default_rng(0)
    count = 1_000_000
    times = np.cumsum(random.exponential(0.1, count))
    if header.startswith("TIMESTAMP"):
        stamps = np.datetime64("2023-11-16T18:15:46") + (times * 1e9).astype("timedelta64[ns]")
        shown = [text.replace("T", " ")[:27] for text in np.datetime_as_string(stamps).tolist()]
    else:
        shown = [f"{time:.6f}" for time in times.tolist()]
    prompts, outputs = random.integers(1, 3000, count).tolist(), random.integers(1, 1000, count).tolist()
    path = tmp_path / "trace.csv"
    with path.open("w") as stream:
        stream.write(header + "\n")
        stream.writelines(f"{time},{p},{o}\n" for time, p, o in zip(shown, prompts, outputs, strict=True))
    root = Path(__file__).parents[2]
    # The processor's time, not the wall's: what else runs on the machine is no property of the reader.
    command = [sys.executable, "-c", _MEASURE, str(path)]
    done = subprocess.run(
        command, check=True, capture_output=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )
    rows, seconds, megabytes = json.loads(done.stdout)
    assert rows == count
    assert seconds <= 5
    assert megabytes <= 500
