"""The command line of the eighty configurations; what it is for stands in the package."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Hashable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from . import __doc__ as about


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.eighty", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--cases", type=int, default=80)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a folder for the table: configurations.csv and configurations.md")
    options = parser.parse_args()
    from tests.eighty.examine import examine

    logging.disable(logging.ERROR)  # `transformers` has much to say of configs that nobody made
    rows, table = [], pd.DataFrame()
    for number in range(options.start, options.start + options.cases):
        found = examine(options.seed, number)
        shown = "" if found.checked is None else f"{found.checked:.1e} {found.served:.1e} {found.preemptions:4}"
        print(f"{number:3} {found.family:<14}{found.verdict:<10}{shown:<23}{found.seconds:6.2f} s  {found.reason}",
              flush=True)  # fmt: skip
        if found.verdict == "different":
            print(f"    {found.config}", flush=True)
        rows.append(asdict(found))
        table = pd.DataFrame(rows)
        if options.out:  # case by case: a piece that is ended loses none
            table = write(table, options.out)
    print(", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items()))
    return int((table["verdict"] == "different").any())


def write(table: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Add rows to those that are there, and draw the table that people read; gives all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "configurations.csv"
    if path.exists():
        earlier = pd.read_csv(path)
        table = pd.concat([earlier[~earlier["number"].isin(table["number"])], table]).sort_values("number")
    table.to_csv(path, index=False, float_format="%.3g")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in table["verdict"].value_counts().items())
    lines = [_line(row) for row in table.to_dict("records")]
    (folder / "configurations.md").write_text(
        f"# Drawn configurations of the families that are served: {counts}\n\n"
        "`python -m tests.eighty`: configs are in `configurations.csv`. Largest difference of any logit from the "
        "unpatched model on torch and numba, in standard deviations of the logits: in the steps of `check`, and served "
        "from pools too small for all (on numba with groups of layers apart and windows given back), by chunks of at "
        "most 19 tokens; models with states beside their own cache cut at the same places.\n\n"
        "| case | family | verdict | check | served | allowed | preemptions | seconds | why |\n"
        "|---|---|---|---|---|---|---|---|---|\n" + "\n".join(lines) + "\n"
    )
    return table


def _line(row: dict[Hashable, Any]) -> str:
    often = "" if pd.isna(row["preemptions"]) else str(int(row["preemptions"]))
    numbers = [_number(row[name]) for name in ("checked", "served", "tolerance")]
    why = "" if pd.isna(row["reason"]) else row["reason"]
    shown = [row["number"], row["family"], row["verdict"], *numbers, often, f"{row['seconds']:.1f}", why]
    return f"| {' | '.join(map(str, shown))} |"


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.1e}"


raise SystemExit(main())
