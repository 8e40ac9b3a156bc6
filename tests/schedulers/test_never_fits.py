"""What a request that can never be served would take is told: its slots, or the lane, chunk or blocks around them."""

from __future__ import annotations

import pytest

from allocators.base import Allocator, Holder
from allocators.buddy import Buddy
from allocators.checker import Checked
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.radix import Radix
from allocators.virtual import Virtual
from schedulers.continuous import Continuous
from schedulers.request import Request
from schedulers.reservation import RESERVATIONS


class Halves(Allocator):
    """Of a third party that says nothing of it: two halves."""

    def footprint(self, tokens: int) -> int | None:
        return self.capacity // 2 if tokens <= self.capacity // 2 else None

    def place(self, holder: Holder, tokens: int) -> int | None:
        return None

    def release(self, holder: Holder) -> None: ...

    def spans(self, holder: Holder) -> list[tuple[int, int]]:
        return []


POOL = "never fit the KV pool of 784 slots"


@pytest.mark.parametrize(
    ("allocator", "tokens", "reason"),
    [
        (Contiguous(784, 2048), 13, f"13 tokens {POOL}: they take a lane of 2048 slots"),
        (Contiguous(784, 2048), 1051, f"1051 tokens {POOL}: they take a lane of 2048 slots"),
        (Contiguous(784, 2048, lane_slots=100), 101, f"101 tokens {POOL}: they take more than a lane of 100 slots"),
        (Contiguous(784, 2048, fit="first_fit"), 785, f"785 tokens {POOL}"),
        (Buddy(784, 2048), 513, f"513 tokens {POOL}: they take a chunk of 1024 slots"),
        (Paged(784, 2048, block_size=256), 769, f"769 tokens {POOL}: they take 4 blocks of 256 slots"),
        (
            Paged(200, 2048, block_size=256),
            13,
            "13 tokens never fit the KV pool of 200 slots: they take a block of 256 slots",
        ),
        (Paged(784, 2048), 785, f"785 tokens {POOL}"),
        (Radix(784, 2048, page_size=256), 769, f"769 tokens {POOL}: they take 4 pages of 256 slots"),
        (Virtual(784, 2048, page_tokens=300), 601, f"601 tokens {POOL}: they take 3 page groups of 300 slots"),
        (Halves(784, 2048), 393, f"393 tokens {POOL}: they take more than Halves has for one sequence"),
        (Halves(784, 2048), 785, f"785 tokens {POOL}"),
        (Checked(Halves(784, 2048)), 393, f"393 tokens {POOL}: they take more than Halves has for one sequence"),
    ],
)
def test_the_reason_names_what_it_takes(allocator: Allocator, tokens: int, reason: str) -> None:
    scheduler = Continuous(allocator, RESERVATIONS["exact"], max_model_len=2048)
    assert scheduler.unservable(Request(0, 0, tokens - 1, 2)) == reason


def test_a_promise_that_never_fits_is_named_with_the_need() -> None:
    scheduler = Continuous(Paged(784, 2048), RESERVATIONS["max_model_len"], max_model_len=2048)
    assert scheduler.unservable(Request(0, 0, 5, 9)) == f"2048 tokens, promised to a request of 13, {POOL}"
