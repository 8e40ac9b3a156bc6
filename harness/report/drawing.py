"""Draws and saves figures; one that fails does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.files import write_text, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[], "Figure | None"]


def draw_all(place: Path, figures: dict[str, Draw], warnings: list[str], medium: str = "screen") -> list[Path]:
    """Draw figures by name as PNG and SVG into a folder, except those that are None. Returns the PNGs.

    A figure that fails (or all, if nothing can be drawn) is a warning.

    Args:
        medium: `paper` also draws each as a PDF for a two-column paper, with a LaTeX float that has its caption.
    """
    paths: list[Path] = []
    with go_on("figures", warnings):
        import matplotlib

        from harness.report.style import RC

        with matplotlib.rc_context(RC):
            for name, draw in figures.items():
                with go_on(f"figure {name}", warnings):
                    figure = draw()
                    if figure is not None:
                        paths.append(_save(figure, place / f"{name}.png"))
        if medium == "paper":
            _print(place, figures, warnings)
    return paths


@contextmanager
def go_on(what: str, warnings: list[str]) -> Iterator[None]:
    """Turns the failure of a part into a warning with its name; the other parts are still made."""
    try:
        yield
    except Exception as error:  # of whatever kind: the rest of the report must still be made
        known = isinstance(error, HarnessError)
        warnings.append(f"{what}: {error}" if known else f"{what}: {type(error).__name__}: {error}")


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    with written(path, "wb") as file:
        figure.savefig(file, dpi=150, format="png")
    figure.set_layout_engine("none")  # keep the layout, or it would be computed again for each file
    with written(path.with_suffix(".svg"), "wb") as file:
        figure.savefig(file, dpi=150, format="svg", metadata={"Date": None})
    return path


def _print(place: Path, figures: dict[str, Draw], warnings: list[str]) -> None:
    import matplotlib

    from harness.report import in_print
    from harness.report.style import RC

    with matplotlib.rc_context({**RC, **in_print.RC}), in_print.printing():
        for name, draw in figures.items():
            with go_on(f"figure {name}.pdf", warnings):
                figure = draw()
                if figure is not None:
                    with written(place / f"{name}.pdf", "wb") as file:
                        in_print.save(figure, file)
                    write_text(place / f"{name}.tex", in_print.latex_float(figure, name))
