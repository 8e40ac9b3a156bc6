"""Eighty configurations of the families that are served, none of them the one that is tested elsewhere.

`python -m tests.eighty [--cases N] [--start N] [--seed N] [--out FOLDER]` draws small models of every family (heads,
widths, windows and their patterns, caps, sizes of convolutions, states, chunks and latents, ropes, biases …) and asks
of each on torch and on numba: does it say what the unpatched model says, in the steps of `python -m harness check` and
served from pools so small that sequences are preempted? It ends with 1 if one says something else. A piece of the
cases (`--start 20 --cases 20`) is added to what earlier pieces have written.
"""
