"""The suites that allocators, schedulers and latency models inherit, yours included: installed, `kvlab_conformance`."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{suite}" for suite in ("allocator", "scheduler", "latency", "jumps", "play"))
)
