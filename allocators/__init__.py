"""Where the KV cache of a sequence lies: one file per allocator, one contract in `allocators.base`."""
