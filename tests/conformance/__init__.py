"""The suites that every allocator and every scheduler inherits, yours included: installed, `kvlab_conformance`."""

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{suite}" for suite in ("allocator", "scheduler", "play")))
