"""The claims as a table: the claim, the published value, ours, and the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.files import records
from harness.report.claims import HOLDS, MISSING, NO_CLAIM, NOT, NOWHERE, PARTLY, judged
from harness.report.figures import Pair
from harness.report.style import frame, new_figure
from harness.report.sweep import Sweep

COLORS = {HOLDS: "#009E73", PARTLY: "#E69F00", NOT: "#D55E00", NOWHERE: "#CC79A7", MISSING: "#999999",
          NO_CLAIM: "#cccccc"}  # fmt: skip
COLUMNS = (("claim", 0.0, 48), ("published", 0.335, 22), ("ours", 0.485, 56), ("verdict", 0.825, 30))
LINE = 0.19  # inches


def draw(sweep: Sweep) -> Figure | None:
    """One row per claim; None when nothing was run."""
    rows = records(judged(sweep))
    cells = [[textwrap.wrap(str(row[name]), width) or [""] for name, _, width in COLUMNS] for row in rows]
    heights = [max(map(len, row)) for row in cells]
    total = sum(heights) + 0.75 * len(rows) + 1.4
    fig = new_figure(13, LINE * total + 1.7)
    ax = fig.subplots()
    ax.set(xlim=(0, 1), ylim=(total, 0))
    ax.axis("off")
    for name, x, _ in COLUMNS:
        ax.text(x + (0.016 if name == "verdict" else 0), 0.3, {"ours": "here"}.get(name, name), weight="bold", va="top")
    y = 1.4
    for row, texts, height in zip(rows, cells, heights, strict=True):
        ax.axhline(y, color="#dddddd", linewidth=0.7)
        for (name, x, _), lines in zip(COLUMNS, texts, strict=True):
            mark = name == "verdict"
            text = "\n".join(lines)
            ax.text(x + (0.016 if mark else 0), y + 0.38, text, va="top", size=9.5, linespacing=1.25,
                    weight="bold" if name == "claim" else "normal")  # fmt: skip
            if mark:
                ax.plot(x + 0.004, y + 0.85, "o", color=COLORS[row["verdict"]], markersize=9, clip_on=False)
        y += height + 0.75
    counts = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in COLORS}
    told = [f"{counts[HOLDS]} hold", f"{counts[PARTLY]} in part", f"{counts[NOT]} not"]
    asked = len(rows) - counts[MISSING] - counts[NO_CLAIM]
    title = f"Of {asked} claims about paging and continuous batching, {', '.join(told)}"
    if counts[NOWHERE]:
        title += f"; {counts[NOWHERE]} nobody measured in print"
    caption = "Sources, the runs behind every number and what to keep in mind: claims.md."
    handles = [Patch(color=color, label=verdict) for verdict, color in COLORS.items() if counts[verdict]]
    return frame(fig, title, sweep.what_ran, caption, handles, ncols=6)


def published(sweep: Sweep) -> Iterator[Pair]:
    """Nothing: the table itself is about published numbers."""
    return iter(())


def why(sweep: Sweep) -> list[str]:
    """Where to look."""
    return [
        "Every number of ours is computed from runs in this folder; `claims.csv` names them.",
        "All runs are simulated: step times of OPT-13B are those that Fig. 1 of the PagedAttention paper implies "
        "plus a roofline's for prompts; those of OPT-66B and OPT-175B are anchored at the lowest loads of its Fig. 12.",
    ]


def files(sweep: Sweep) -> dict[str, str]:
    """`claims.csv` and `claims.md`."""
    table = judged(sweep)
    lines = ["# Claims", "", "| claim | source | published | here | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {row['claim']} | {row['source']} | {row['published']} | {row['ours']} | **{row['verdict']}** |"
              for row in records(table)]  # fmt: skip
    lines += ["", "## What to keep in mind", ""]
    lines += [f"- **{row['claim']}**: {row['note']}." for row in records(table) if row["note"]]
    lines += ["", "## Where our numbers come from", ""]
    lines += [f"- **{row['claim']}**: {row['runs'].replace('; ', ', ') or 'no run'}" for row in records(table)]
    folders = sweep.table.set_index("part")["dir"].to_dict() if "part" in sweep.table else {}
    lines += ["", "Folders: " + ", ".join(f"{part} `{folder}/`" for part, folder in folders.items()) + "."]
    return {"claims.csv": table.to_csv(index=False), "claims.md": "\n".join(lines) + "\n"}
