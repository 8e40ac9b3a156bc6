"""Model runners: the real one and the simulated one take the same batches."""
