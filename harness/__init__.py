"""kvlab: what the placement of the KV cache and the forming of batches cost an LLM server."""

import sys

from harness.installation import CHECKOUT

if CHECKOUT and (kernels := str(CHECKOUT / "kernels")) not in sys.path:  # its own, whatever is installed beside it
    sys.path.insert(0, kernels)
