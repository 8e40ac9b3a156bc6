"""`python -m harness.config` writes `experiments/KEYS.md` anew."""

from harness.config.table import write

print(f"written to {write()}")
