"""Figures for a two-column paper: as wide as a column, with the title in the caption, readable in greyscale.

They are drawn by the same functions: panels in a row on a screen are stacked in a column. A figure that does not fit
one column (a grid, or more than a page's height) is as wide as both.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

COLUMN, BOTH, TALLEST = 3.33, 7.0, 8.0  # inches: ACM's and USENIX's column, both with the gap, and most of a page
SHRINK = 0.56  # of a panel's height on the screen
FRAME = 1.9  # inches of title and caption on a screen
ROW = 0.125  # inches of a legend's row
FONT, LEAST = 7.2, 6.0  # points
LETTER = 0.052  # inches of a letter at that size
SCALE = 0.76  # of sizes that were chosen for the screen
RC: Any = {
    "font.size": FONT, "axes.titlesize": FONT + 0.4, "legend.fontsize": FONT - 0.4, "font.family": "STIXGeneral",
    "font.weight": "normal", "axes.linewidth": 0.6, "grid.linewidth": 0.4, "hatch.linewidth": 0.5,
    "xtick.major.width": 0.5, "xtick.major.size": 2.5, "xtick.minor.size": 1.5, "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # TrueType, whole: publishers refuse Type 3
}  # fmt: skip

_printing = False


@contextmanager
def printing() -> Iterator[None]:
    """Figures made within this context are drawn for a paper."""
    global _printing
    _printing = True
    try:
        yield
    finally:
        _printing = False


def in_print() -> bool:
    """Whether figures are drawn for a paper."""
    return _printing


class PrintedFigure(Figure):
    """A figure of a paper.

    Args:
        width, height: the size on a screen in inches, with title, legend and caption.

    Attributes:
        caption: the text that a screen shows above and below the panels.
    """

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(COLUMN, height * SHRINK), layout="constrained")
        self.screen = width, height
        self.caption = ""

    def subplots(self, nrows: int = 1, ncols: int = 1, **how: Any) -> Any:
        """The panels; those of a single row are stacked, if they fit."""
        height = max(self.screen[1] - FRAME, 1.0) * SHRINK
        if nrows == 1 and ncols * height <= TALLEST:
            self.set_size_inches(COLUMN, ncols * (height + 0.25))
            how = {key: value for key, value in how.items() if key not in ("sharex", "width_ratios")}
            how["sharey"] = bool(how.get("sharey"))
            axes = super().subplots(ncols, 1, **how)
            return axes.T if how.get("squeeze") is False else axes
        self.set_size_inches(BOTH if ncols > 1 else COLUMN, height + 0.4)
        return super().subplots(nrows, ncols, **how)

    def framed(self, title: str, subtitle: str, caption: str, handles: Sequence[Artist]) -> PrintedFigure:
        """Set sizes and put the legend above; title, subtitle and caption become the paper's caption."""
        self.caption = " ".join(_sentence(text) for text in (title, subtitle, caption) if text)
        for number, ax in enumerate(self.axes):
            if len(self.axes) > 1 and ax.get_title(loc="left"):
                ax.set_title(f"({chr(97 + number)}) {ax.get_title(loc='left')}", loc="left")
            handles = [*handles, *_taken_out(ax)]
            self._fit(ax)
        width = self.get_size_inches()[0]
        self._legend(list({str(handle.get_label()): handle for handle in handles}.values()), width)
        texts: list[Any] = self.findobj(Text)
        lines: list[Any] = self.findobj(Line2D)
        for text in texts:
            text.set_linespacing(0.92)  # STIX has wide lines
            if text.get_fontsize() > FONT * 1.1:  # sized for the screen
                text.set_fontsize(max(LEAST, text.get_fontsize() * SCALE))
        for line in lines:
            line.set(linewidth=line.get_linewidth() * SCALE, markersize=line.get_markersize() * SCALE)
        return self

    def _fit(self, ax: Axes) -> None:
        """Break axis labels that are longer than their panel."""
        columns = ax.get_subplotspec().get_gridspec().ncols if ax.get_subplotspec() else 1  # type: ignore[union-attr]
        room = int((self.get_size_inches()[0] / columns - 0.9) / LETTER)
        ax.set_xlabel(textwrap.fill(ax.get_xlabel(), room))
        ax.set_title(textwrap.fill(ax.get_title(loc="left"), room + 6), loc="left")
        tall = self.get_size_inches()[1] / max(len(self.axes) / columns, 1)
        if "\n" not in ax.get_ylabel():
            ax.set_ylabel(textwrap.fill(ax.get_ylabel(), max(int((tall - 0.4) / LETTER), 12)))

    def _legend(self, handles: list[Artist], width: float) -> None:
        if not handles:
            return
        labels = [textwrap.fill(str(handle.get_label()), int(width / LETTER) - 6) for handle in handles]
        lines = sum(label.count("\n") for label in labels)
        longest = max(len(line) for label in labels for line in label.splitlines())
        columns = max(1, min(len(handles), math.floor(width / (longest * LETTER + 0.42))))
        height = self.get_size_inches()[1] + ROW * (math.ceil(len(handles) / columns) + lines)
        self.set_size_inches(width, height)
        self.legend(handles=handles, labels=labels, loc="outside upper left", ncols=columns, handlelength=2.2,
                    columnspacing=1.0, borderpad=0.1, labelspacing=0.25)  # fmt: skip


def save(figure: Figure, file: IO[bytes]) -> None:
    """Write the PDF with embedded fonts; equal figures give equal bytes."""
    figure.savefig(file, format="pdf", metadata={"CreationDate": None, "Producer": None, "Creator": "kvlab"})


def latex_float(figure: Figure, name: str) -> str:
    """The LaTeX float: the figure with its caption, one or two columns wide."""
    star, width = ("*", "textwidth") if figure.get_size_inches()[0] > COLUMN + 0.1 else ("", "columnwidth")
    caption = _latex(getattr(figure, "caption", ""))
    return (f"\\begin{{figure{star}}}\n  \\centering\n  \\includegraphics[width=\\{width}]{{{name}.pdf}}\n"
            f"  \\caption{{{caption}}}\n  \\label{{fig:{name}}}\n\\end{{figure{star}}}\n")  # fmt: skip


def _taken_out(ax: Axes) -> list[Artist]:
    """Remove a panel's own legend, for which there is no room, and return its entries."""
    legend = ax.get_legend()
    if legend is None:
        return []
    entries = ax.get_legend_handles_labels()[0]
    legend.remove()
    return list(entries)


def _sentence(text: str) -> str:
    text = text.strip().replace("  ·  ", ", ")
    return text if text[-1] in ".?!" else f"{text}."


LATEX = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "×": r"$\times$", "≈": r"$\approx$", "µ": r"$\mu$",
         "·": r"$\cdot$", "≤": r"$\le$", "≥": r"$\ge$", "†": r"$\dagger$", "−": r"$-$"}  # fmt: skip


def _latex(text: str) -> str:
    """A text escaped for LaTeX."""
    text = re.sub(r"([&%$#_{}])", r"\\\1", text.replace("\\", "/"))
    return "".join(LATEX.get(sign, sign) for sign in text)
