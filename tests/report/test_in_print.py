"""Figures for a paper: a column wide, fonts embedded, the title in the caption, all told apart without colour."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure

from harness.errors import HarnessError
from harness.report import in_print, latency_cdf, memory_breakdown, throughput_latency
from harness.report.drawing import draw_all
from harness.report.looks import OWN, looks
from harness.report.style import COLUMNS, RC, fill
from harness.report.sweep import Sweep
from harness.sweeps.resume import report_folder


@pytest.fixture(scope="module")
def sweep(seven: Path) -> Sweep:
    return Sweep.read(seven)


def test_a_pdf_is_a_column_wide_and_its_fonts_are_embedded(sweep: Sweep, tmp_path: Path) -> None:
    warnings: list[str] = []
    draw_all(tmp_path / "figures", {"books": lambda: memory_breakdown.draw(sweep)}, warnings, "paper")
    assert not warnings
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".png", ".svg", ".pdf", ".tex"}
    pdf = (tmp_path / "figures" / "books.pdf").read_bytes()
    width = float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf)[1])  # type: ignore[index]
    assert width == pytest.approx(72 * in_print.COLUMN, abs=1)
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    text = (tmp_path / "figures" / "books.tex").read_text()
    assert r"\includegraphics[width=\columnwidth]{books.pdf}" in text
    assert r"max\_model\_len" in text
    assert r" \%" in text
    assert not re.search(r"(?<!\\)[%&#_]", text)


def printed(draw, sweep: Sweep) -> Figure:
    with matplotlib.rc_context({**RC, **in_print.RC}), in_print.printing():
        figure = draw(sweep)
    assert isinstance(figure, in_print.PrintedFigure)
    return figure


def test_panels_of_a_row_stand_below_one_another_and_the_title_is_the_caption(sweep: Sweep) -> None:
    figure = printed(latency_cdf.draw, sweep)
    assert [ax.get_subplotspec().get_gridspec().get_geometry() for ax in figure.axes] == [(3, 1)] * 3  # type: ignore[union-attr]
    assert [ax.get_title(loc="left")[:4] for ax in figure.axes] == ["(a) ", "(b) ", "(c) "]
    assert figure.caption.startswith("How long do requests wait")
    assert not figure.texts
    bars = printed(throughput_latency.draw, sweep)
    assert bars.get_size_inches()[1] < in_print.TALLEST + 1
    assert len({tuple(t.get_text() for t in ax.get_yticklabels()) for ax in bars.axes}) == 1  # each has its names


def test_without_colour_lines_and_fills_differ() -> None:
    headline = ["static + contiguous(max_model_len)", "static + paged(on_demand)", "vLLM", "Orca (Max)",
                "continuous + contiguous(max_model_len)", "Orca (Pow2)", "Orca (Oracle)"]  # fmt: skip
    assert set(headline) <= set(OWN)
    found = looks(headline).values()
    assert len({(str(look.dash), look.marker) for look in found}) == len(headline)
    with in_print.printing():
        light = {name: fill(name) for name in COLUMNS}

    def grey(color: str) -> float:
        red, green, blue = matplotlib.colors.to_rgb(color)
        return 0.299 * red + 0.587 * green + 0.114 * blue

    names = list(COLUMNS)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            same = light[one]["hatch"] == light[other]["hatch"]
            assert not same or abs(grey(COLUMNS[one][0]) - grey(COLUMNS[other][0])) > 0.05, (one, other)


def test_a_report_made_again_takes_the_medium_and_nothing_else(seven: Path) -> None:
    with pytest.raises(HarnessError, match="did you mean paper"):
        report_folder(seven, "figures=papr")
    with pytest.raises(HarnessError, match="a report takes figures=…, exports=…, tables=…"):
        report_folder(seven, "seed=1")
