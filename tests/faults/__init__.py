"""Faults injected into a small sweep, each for real, and what was lost: jobs, and lines of tables.

python -m tests.faults --out results/reference/faults       # all of them, some minutes
python -m tests.faults --only disk                          # those whose name holds this word
"""
