"""The suites that plug-ins inherit, yours included; installed, `kvlab_conformance`: one for each kind of them."""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{suite}" for suite in ("allocator", "scheduler", "latency", "router", "jumps", "play"))
)
