"""Folders of runs and sweeps: whose one is, what a sweep planned, and what its jobs say of themselves."""
