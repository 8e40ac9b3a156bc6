"""A step of 256 decodes of a uniform model, here and in another checkout, in turn.

Prints the median of the ratios of processor times and exits with 1 if it is above 1.05. Two minutes on a quiet machine:

    git worktree add /tmp/before b16a646^  # the commit before layers could keep different tokens
    python tests/benchmarks/against.py /tmp/before
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[2]
STEPS = """
import time
from allocators.paged import Paged
from schedulers.request import Request
from schedulers.reservation import on_demand
from schedulers.vllm_v1 import VllmV1

scheduler = VllmV1(Paged(400_000, 4096), on_demand, max_model_len=4096, max_num_seqs=256, max_num_batched_tokens=8192)
for number in range(256):
    scheduler.add(Request(number, 0, 500 + number % 200, 3000))
while scheduler.waiting:
    scheduler.complete(scheduler.schedule(0), None)
start = time.process_time()
for _ in range(600):
    scheduler.complete(scheduler.schedule(0), None)
    scheduler.allocator.memory()
print((time.process_time() - start) / 600)
"""


def seconds(checkout: Path) -> float:
    """Processor time of a step in the code of a checkout."""
    done = subprocess.run([sys.executable, "-c", STEPS], cwd=checkout, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main(other: Path) -> int:
    ratios = [seconds(HERE) / seconds(other) for _ in range(15)]
    median = statistics.median(ratios)
    print(f"here / there: {median:.3f}, from {min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} pairs")
    return int(median > 1.05)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
