"""A router of somebody's own over two engines, kept outside: right with jumps and with exact steps."""

from __future__ import annotations

import pytest

from harness.routers.base import Router
from schedulers.request import Request
from tests.conformance.router import RouterConformance, fleet
from tests.strangers.conftest import Bring


class TestConforms(RouterConformance):
    @pytest.fixture(autouse=True)
    def _outside(self, bring: Bring) -> None:
        self.cls = bring("sticky").Sticky

    def make(self, num_engines: int) -> Router:
        router: Router = self.cls(num_engines, delay_ns=3_000, seed=3)
        return router


def test_conversations_stay_together(bring: Bring) -> None:
    """Eight of them with five turns each, far apart: every turn is where the first one was."""
    sticky = bring("sticky").Sticky
    turns = [(turn, chat) for turn in range(5) for chat in range(8)]
    requests = [Request(i, turn * 1_000_000 + chat, 5 + turn, 4, session=f"chat {chat}")
                for i, (turn, chat) in enumerate(turns)]  # fmt: skip
    served = fleet(sticky(2, seed=1), requests)
    homes = [{requests[i].session for i in engine.ids} for engine in served]
    assert homes[0] & homes[1] == set()
    assert sorted(map(len, homes)) == [4, 4]
