"""`experiment=validate`: a measured run of a real engine, predicted from measured kernels, one beside the other."""
