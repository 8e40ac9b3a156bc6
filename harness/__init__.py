"""kvlab: what the placement of the KV cache and the forming of batches cost an LLM server."""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("kvlab_kernels") is None:  # a checkout that runs without having been installed
    sys.path.append(str(Path(__file__).resolve().parents[1] / "kernels"))
