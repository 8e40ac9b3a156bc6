"""Measured expert blocks: time by the tokens of a step and by how many experts they go to."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from harness.runner.latency.grid import Node, grid, interpolate
from harness.runner.latency.table_files import read_table

COLUMNS = ["tokens", "activated_experts", "time_us"]


class Experts(NamedTuple):
    """The whole expert block of a layer, router and all, on one device.

    Attributes:
        table: µs by (tokens, activated experts).
        number, top_k: experts of a layer, and of a token: the most and the fewest that the table has.
    """

    table: Node
    number: int
    top_k: int

    @classmethod
    def load(cls, folder: Path) -> Experts | None:
        """`moe.csv` of the folder, or of the one of a single device beside it; None where there is none.

        Raises:
            HarnessError: a column that is not there, or a row that is no number.
        """
        name = folder.name
        alone = folder.with_name(name[: name.rfind("tp")] + "tp1") if "tp" in name else folder
        for place in (folder, alone):
            if any((place / f"moe.csv{end}").is_file() for end in ("", ".gz")):
                rows = read_table(place, "moe", COLUMNS)
                counts = rows["activated_experts"]
                return cls(grid(rows.values.tolist()), int(counts.max()), int(counts.min()))
        return None

    def us(self, tokens: float, activated: float) -> float:
        """Of so many tokens, each with its `top_k` among so many experts: linear in both."""
        return interpolate(self.table, tokens, activated)

    def drawn(self, tokens: float) -> float:
        """How many experts are expected to have a token if each draws its `top_k` among all alike."""
        return self.number * (1 - (1 - self.top_k / self.number) ** tokens)

    def alone(self, tokens: int) -> float:
        """µs on a single device."""
        return self.us(tokens, self.drawn(tokens))
