"""`experiment=validate`: a measured run of a real engine beside its prediction from measured kernels."""
