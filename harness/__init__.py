"""kvlab: what the placement of the KV cache and the forming of batches cost an LLM server."""
