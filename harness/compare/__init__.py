"""`python -m harness compare DIR DIR…`: finished runs beside each other, whenever and wherever they were made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.compare.runs import Group, read_groups
from harness.console.screen import screen
from harness.errors import HarnessError
from harness.files import write_table
from harness.metrics.spread import LEAST, SAME, difference, half_width
from harness.report.numbers import KINDS, POOL
from harness.report.repeats import INSIGNIFICANT

COLUMNS = ["first", "second", "metric", "first_mean", "first_half_width", "first_runs", "second_mean",
           "second_half_width", "second_runs", "difference", "half_width", "difference_pct", "pairs",
           "verdict"]  # fmt: skip
# What a table calls a number; where each slot of the pool was is for `csv=` alone.
PRINTED = {number.key: f"{kind.name} {number.name}".strip() + (f", {kind.unit}" if kind.unit else "")
           for kind in KINDS for number in kind.numbers}  # fmt: skip
MAX_LISTED = 12  # keys that differ, of each kind
EXPLAINED = ("±: half of the 95 % interval over seeds (Student's t), paired where seeds are shared, else Welch's; "
             f"fewer than {LEAST} runs have none. Not told apart: the interval of the difference holds 0.")  # fmt: skip


def compare(*words: str, console: Console | None = None) -> pd.DataFrame:
    """Print every group of the further folders beside its like in the first one, and what sets them apart.

    Groups of the same name are alike; with one group in the first folder, all others are compared with it.

    Args:
        words: folders of runs or sweeps, two or more; `csv=FILE` writes the table.

    Returns:
        `COLUMNS`, a row for each pair of groups and metric.

    Raises:
        HarnessError: a folder holds no finished run, or nothing has its like.
    """
    folders = [word for word in words if not word.startswith("csv=")]
    if len(folders) < 2:
        raise HarnessError("compare takes two folders or more")
    first, *others = [read_groups(folder) for folder in folders]
    console = console or screen(110)
    pairs, alone = _alike(first, [group for groups in others for group in groups])
    if not pairs:
        raise HarnessError(f"nothing in {', '.join(folders[1:])} is called like anything in {folders[0]}: "
                           f"{'; '.join(group.label for group in first)}")  # fmt: skip
    rows: list[dict[str, Any]] = []
    for one, two in pairs:
        mine = list(_rows(one, two))
        rows += mine
        console.print(_view(one, two, mine))
        for text in [*_same(mine), *_apart("configuration", one.config(), two.config()),
                     *_apart("environment", one.environment(), two.environment())]:  # fmt: skip
            console.print(Text(text, style="dim"))
        for text in _warnings(one, two, mine):
            console.print(Text(f"warning: {text}", style="yellow"))
        console.print()
    for group in alone:
        console.print(Text(f"warning: {group.name} has no like in the other folders", style="yellow"))
    console.print(Text(EXPLAINED, style="dim"))
    table = pd.DataFrame(rows, columns=COLUMNS)
    for word in words:
        if word.startswith("csv="):
            write_table(Path(word.removeprefix("csv=")), table)
    return table


def _alike(first: Sequence[Group], others: Sequence[Group]) -> tuple[list[tuple[Group, Group]], list[Group]]:
    """(pairs of a group and its like in the first folder, groups without one)."""
    named = {group.label: group for group in first}
    pairs, alone = [], []
    for group in others:
        like = named.get(group.label) or (first[0] if len(first) == 1 else None)
        if like:
            pairs.append((like, group))
        else:
            alone.append(group)
    taken = [one for one, _ in pairs]
    return pairs, [*(group for group in first if group not in taken), *alone]


def _rows(one: Group, two: Group) -> Iterator[dict[str, Any]]:
    """Of each number that one of them has; of one that is 0 in both there is nothing to tell."""
    for metric in dict.fromkeys(number.key for kind in (*KINDS, *POOL) for number in kind.numbers):
        mine, theirs = one.values(metric), two.values(metric)
        if not any([*mine.values(), *theirs.values()]):
            continue
        row: dict[str, Any] = {"first": one.name, "second": two.name, "metric": metric, "verdict": ""}
        for name, values in (("first", mine), ("second", theirs)):
            row[f"{name}_runs"] = len(values)
            row[f"{name}_mean"] = float(np.mean(list(values.values()))) if values else None
            row[f"{name}_half_width"] = half_width(list(values.values()))
        if mine and theirs:
            found = difference(mine, theirs)
            base = row["first_mean"]
            row |= {"difference": found.value, "half_width": found.half, "pairs": found.pairs, "verdict": found.verdict,
                    "difference_pct": 100 * found.value / base if base else None}  # fmt: skip
        yield row


def _view(one: Group, two: Group, rows: Sequence[Mapping[str, Any]]) -> Table:
    view = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title_justify="left",
                 title=Text(f"{one.name} ({len(one.rows)} runs)  →  {two.name} ({len(two.rows)} runs)"))  # fmt: skip
    for place, name in enumerate(("", "first", "second", "difference", "%", "")):
        view.add_column(name, justify="right" if 0 < place < 5 else "left", no_wrap=True)
    for row in rows:
        if row["metric"] not in PRINTED or row["verdict"] == SAME:
            continue
        percent = row.get("difference_pct")
        cells = [PRINTED[row["metric"]], *(_told(row[f"{name}_mean"], row[f"{name}_half_width"])
                                         for name in ("first", "second")),
                 _told(row.get("difference"), row.get("half_width"), "+"),
                 f"{percent:+.1f}" if percent is not None else "–", row["verdict"]]  # fmt: skip
        view.add_row(*map(Text, cells), style="dim" if row["verdict"] in INSIGNIFICANT else "")
    return view


def _same(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line of the numbers that do not differ in a digit."""
    if same := [PRINTED[row["metric"]] for row in rows if row["metric"] in PRINTED and row["verdict"] == SAME]:
        yield f"{SAME}: {'; '.join(same)}"


def _told(value: float | None, half: float | None, sign: str = "") -> str:
    """``1,234 ± 12``: as many digits as the spread leaves."""
    if value is None:
        return "–"
    if not value and not half:
        return "0"
    size = max(abs(value), 1e-9) if half is None or not half else min(half, max(abs(value), 1e-9))
    digits = min(max(1 - math.floor(math.log10(size)) + (2 if half is None or not half else 0), 0), 4)
    text = f"{value:{sign},.{digits}f}"
    return text if half is None else f"{text} ± {half:,.{digits}f}"


def _apart(what: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    """One line of the keys whose values differ."""
    keys = [key for key in dict.fromkeys([*one, *two]) if one.get(key) != two.get(key)]
    told = [f"{key} {one.get(key, 'absent')} → {two.get(key, 'absent')}" for key in keys[:MAX_LISTED]]
    more = f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else ""
    yield f"{what}: {'; '.join(told)}{more}" if keys else f"{what}: the same"


def _warnings(one: Group, two: Group, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What can't be compared, or not without a thought."""
    kinds = [str(group.fact("device")).startswith("simulated") for group in (one, two)]
    if kinds[0] != kinds[1]:
        simulated, measured = (one, two) if kinds[0] else (two, one)
        yield f"{measured.name} was measured, {simulated.name} is simulated"
    seeds = [row["seed"] for row in one.rows if row["seed"] in [other["seed"] for other in two.rows]]
    if not seeds:
        yield "no seed is shared: each side had requests of its own"
    for seed in seeds[:1]:
        mine, theirs = one.prompts(seed), two.prompts(seed)
        if mine is not None and theirs is not None and not np.array_equal(mine, theirs):
            yield f"other requests were served: the {len(mine):,} and {len(theirs):,} prompts of seed {seed} differ"
    for name, said in (("capacity", "the KV pools hold {} and {} slots"), ("model", "the models are {} and {}")):
        facts = one.fact(name), two.fact(name)
        if facts[0] is not None and facts[1] is not None and facts[0] != facts[1]:
            yield said.format(*facts)
    for group in (one, two):
        lost = sum(row.get(name, 0) or 0 for row in group.rows for name in ("rejected", "unfinished", "failed")
                   if pd.notna(row.get(name)))  # fmt: skip
        if lost:
            yield f"{group.name}: {lost:,.0f} requests were not served and are not in its latencies"
        if group.missing:
            yield f"{group.name}: {group.missing} of its runs did not finish and are left out"
    absent = [row["metric"] for row in rows if row["first_mean"] is None or row["second_mean"] is None]
    if absent:
        yield f"only one side has {', '.join(absent)}"
    commits = [group.environment().get("commit") for group in (one, two)]
    if commits[0] != commits[1]:
        yield f"other code: commits {commits[0]} and {commits[1]}; CHANGELOG.md tells which definitions moved"
