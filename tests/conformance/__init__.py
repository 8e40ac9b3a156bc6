"""The suites that plug-ins inherit, yours included; installed, `kvlab_conformance`: one for each kind of them.

They try a third of their random cases by default, all with ``KVLAB_THOROUGH=1``.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{suite}" for suite in ("allocator", "scheduler", "latency", "router", "jumps", "play"))
)
