"""The verdict about compaction follows the numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from harness.report.claims import HOLDS, NOT, PARTLY, compaction, copying

GB_SLOTS = 1_000_000_000 // 819_200  # of OPT-13B; reading and writing them takes 2 / 1321.75 s


class Told:
    """Runs of 10 s each that are told their throughput and how many GB they copied."""

    def __init__(self, **runs: tuple[float, float]) -> None:
        self.runs = runs

    def __getitem__(self, part: str) -> dict[str, Any]:
        return {"output_throughput": self.runs[part][0], "duration_s": 10.0}

    def steps(self, part: str) -> pd.DataFrame:
        return pd.DataFrame({"copied": [0, GB_SLOTS * self.runs[part][1], 0]})


def told(known: tuple[float, float], growing: tuple[float, float], growing_before: tuple[float, float]) -> Any:
    return Told(full_first_fit=(100, 0), full_first_fit_compacting=known, full_growing=growing_before,
                full_growing_compacting=growing, full_vllm=(200, 0))  # fmt: skip


def test_copies_read_and_write_memory() -> None:
    runs: Any = Told(some=(1, 1000))
    assert copying(runs, "some") == pytest.approx(1000 * 2 / (1555 * 0.85) / 10, rel=1e-3)


@pytest.mark.parametrize(
    ("known", "growing", "growing_before", "verdict"),
    [((112, 10), (112, 10), (100, 0), NOT), ((105, 1000), (105, 1000), (100, 0), PARTLY),
     ((99, 10), (98, 10), (100, 0), HOLDS), ((112, 10), (105, 1000), (100, 0), PARTLY),
     ((112, 10), (105, 1000), (100, 900), NOT)],
)  # fmt: skip  # the last: copies that growing needs anyway are not compaction's
def test_the_verdict(known: Any, growing: Any, growing_before: Any, verdict: str) -> None:
    found = compaction(told(known, growing, growing_before))
    assert found.verdict == verdict
    assert f"{100 - known[0] / 2:.0f} % below vLLM" in found.ours
