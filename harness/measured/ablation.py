"""The effect of each rule, one switched off at a time: `python -m harness.measured.ablation`.

    python -m harness.measured.ablation ROWS TABLES SPLIT FILE [EVERY]

writes the median |error| of TPOT and TTFT (%) by engine, with all rules and without each, over the rows that are
predicted in both cases: for the groups in SPLIT, to which constants were fitted, and for all others. Constants are not
fitted again. TTFT is of rows from inferencex only. Every EVERY-th row (12) is used.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import pandas as pd
import yaml

from harness.errors import HarnessError, answer
from harness.files import write_table
from harness.measured.predict import Predictor
from harness.measured.report import markdown
from harness.measured.task import predict_row, read_rows
from harness.operators.compose import Rules

ALL = "nothing"


def ablate(rows: pd.DataFrame, tables: Path, fitted: set[tuple[str, str, str]], models: Path | None = None
            ) -> pd.DataFrame:  # fmt: skip
    """`without`, `groups` (fitted or test), `engine`, `rows`, and medians of |error| in %.

    Args:
        fitted: model, GPU and engine of the groups that constants were fitted to.
    """
    errors = {name: _errors(rows, Predictor(tables, models, rules=Rules.without([name] if name != ALL else [])))
              for name in (ALL, *(one.name for one in fields(Rules)))}  # fmt: skip
    both = pd.concat(errors, names=["without", "row"]).reset_index()
    predicted = both.groupby("row")["tpot_error_pct"].transform(lambda errors: errors.notna().all())
    both = both[predicted]
    keys = list(zip(both["model"], both["gpu"], both["engine"], strict=True))
    both["groups"] = ["fitted" if key in fitted else "test" for key in keys]
    both["ttft_error_pct"] = both["ttft_error_pct"].where(both["origin"] == "inferencex")
    by = both.groupby(["groups", "engine", "without"], sort=False)
    found = by.agg(rows=("row", "size"), tpot=("tpot_error_pct", _median), ttft=("ttft_error_pct", _median))
    return found.reset_index().rename(columns={"tpot": "TPOT median %", "ttft": "TTFT median %"})


def _median(errors: pd.Series) -> float:
    return round(float(errors.abs().median()), 1)


def _errors(rows: pd.DataFrame, predictor: Predictor) -> pd.DataFrame:
    found = [predict_row(predictor, int(str(number)), {str(key): value for key, value in values.items()})
             for number, values in rows.iterrows()]  # fmt: skip
    table = pd.DataFrame(found).set_index("row")[
        ["model", "gpu", "engine", "origin", "tpot_error_pct", "ttft_error_pct"]
    ]
    return table.astype({"tpot_error_pct": float, "ttft_error_pct": float})


def wide(table: pd.DataFrame) -> pd.DataFrame:
    """A line per rule, TPOT / TTFT by groups and engine."""
    cells = table.assign(both=[f"{tpot} / {ttft}" for tpot, ttft in
                               zip(table["TPOT median %"], table["TTFT median %"], strict=True)],
                         at=table["groups"] + ", " + table["engine"])  # fmt: skip
    return (
        cells.pivot(index="without", columns="at", values="both")
        .loc[list(dict.fromkeys(table["without"]))]
        .reset_index()
    )


def main(rows: str, tables: str, split: str, file: str, every: str = "12") -> None:
    """Write the table, and print a line per rule."""
    named = yaml.safe_load(Path(split).read_text(encoding="utf-8"))["fit"]
    fitted = {(group["model"], group["gpu"], group["engine"]) for group in named}
    table = ablate(read_rows(Path(rows)).iloc[:: int(every)], Path(tables), fitted)
    write_table(Path(file), table)
    print("\n".join(markdown(wide(table))))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:6])
    except HarnessError as error:
        answer(error)
