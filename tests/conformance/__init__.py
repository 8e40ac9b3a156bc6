"""The suites that every allocator and every scheduler inherits, yours included."""

import pytest

pytest.register_assert_rewrite("tests.conformance.allocator", "tests.conformance.scheduler", "tests.conformance.play")
