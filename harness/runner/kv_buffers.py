"""The buffers that a KV cache consists of, for allocators that map memory in bytes."""

from __future__ import annotations

from allocators.layout import KVLayout
from harness.errors import HarnessError


def kv_buffers(layout: KVLayout) -> dict[str, int]:
    """`token_bytes`: K (or V) of one token in one layer of one device; `buffers`: K and V of every layer.

    Raises:
        HarnessError: tokens take different bytes in different buffers.
    """
    widths = {(group.heads * group.key_width * group.element_bytes, group.value_width in (0, group.key_width))
              for group in layout.groups}  # fmt: skip
    size, alike = widths.pop()
    if widths or not alike or layout.state_bytes:
        raise HarnessError("an allocator that maps memory buffer by buffer needs K and V of one width in all layers")
    return {"token_bytes": size, "buffers": sum(len(group.layers) * group.tensors for group in layout.groups)}
