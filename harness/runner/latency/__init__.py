"""How long a step takes: one file per latency model."""
