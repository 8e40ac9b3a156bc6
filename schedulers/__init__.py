"""How batches are formed: one file per scheduler, one contract in `schedulers.base`."""
