"""Step times composed from tables of measured operators: one kernel of one layer, by GPU, engine and version.

The tables' layout is that of aiconfigurator (Apache-2.0): `DIR/GPU/ENGINE/VERSION/TABLE.parquet` in milliseconds,
`DIR/GPU/nccl/VERSION/nccl_perf.parquet`, and `DIR/gpus/GPU.yaml`, what the GPU's peaks are.
"""
