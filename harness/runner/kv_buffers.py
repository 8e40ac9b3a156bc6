"""The buffers that a KV cache consists of, for allocators that map memory in bytes."""

from __future__ import annotations

from allocators.layout import KVLayout, buffers_of
from harness.errors import HarnessError


def kv_buffers(layout: KVLayout) -> dict[str, int]:
    """`token_bytes`: K (or V) of one token in one layer of one device; `buffers`: K and V of every layer.

    Raises:
        HarnessError: tokens take different bytes in different buffers.
    """
    try:
        size, buffers = buffers_of(layout.groups)
    except ValueError as error:
        raise HarnessError(
            f"{error}; allocator=split with allocator.placement=virtual maps each kind by itself"
        ) from None
    return {"token_bytes": size, "buffers": buffers}
