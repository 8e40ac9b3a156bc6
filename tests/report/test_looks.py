"""A system has one colour: in every figure and on the page, of every report, whatever stands beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from harness.report import latency_cdf, throughput_latency
from harness.report.looks import OWN, color_of, looks, row_looks
from harness.report.page.charts import charts
from harness.report.page.charts import color_of as colors_on_the_page
from harness.report.sweep import Sweep

from .conftest import SYSTEMS, trace, write_job

STRANGERS = ["mine.Paged", "continuous + tests.test_labels.Paged(on_demand)", "my system", "another"]


def drawn(figure: Figure | None) -> set[str]:
    """Colours of the bars and curves of a figure."""
    assert figure is not None
    patches = {to_hex(patch.get_facecolor()).upper() for ax in figure.axes for patch in ax.patches}
    return patches | {to_hex(line.get_color()).upper() for ax in figure.axes for line in ax.get_lines()}


def test_a_colour_does_not_depend_on_what_else_is_drawn() -> None:
    everybody = looks([*OWN, *STRANGERS])
    for name in everybody:
        alone, pair = looks([name])[name], looks([name, "Orca (Max)"])[name]
        assert alone.color == pair.color == everybody[name].color == color_of(name), name


def test_systems_of_one_colour_in_a_figure_differ_otherwise() -> None:
    found = looks(OWN)
    assert len(set(found.values())) == len(OWN)
    same = looks(["vLLM", "vLLM [max_num_seqs=4]", "vLLM [max_num_seqs=8]"])
    assert len({look.color for look in same.values()}) == 1
    assert len(set(same.values())) == 3


def test_the_order_of_the_rows_changes_nothing() -> None:
    names = [*STRANGERS, *OWN]
    assert looks(names) == looks(reversed(names))


def test_points_of_a_sweep_are_paler_from_one_to_the_next() -> None:
    groups = pd.DataFrame({"system": ["vLLM"] * 3, "rate": [1, 2, 4], "label": ["a", "b", "c"]})
    first, *others = (row_looks(groups, ["rate"])[label] for label in "abc")
    assert first.color == color_of("vLLM")
    reds = [int(look.color[1:3], 16) for look in (first, *others)]
    assert reds == sorted(reds)
    assert len(set(reds)) == 3


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("two")
    for i, system in enumerate(("Orca (Oracle)", "vLLM")):
        write_job(folder / str(i), system, trace(12))
    return Sweep.read(folder)


@pytest.mark.parametrize("draw", [latency_cdf.draw, throughput_latency.draw])
def test_figures_of_two_reports_agree(draw: Callable[[Sweep], Figure | None], two: Sweep, seven: Path) -> None:
    assert drawn(draw(two)) == {color_of("Orca (Oracle)"), color_of("vLLM")}
    assert drawn(draw(Sweep.read(seven))) == {color_of(system) for system in SYSTEMS}


def test_the_page_has_the_colours_of_the_figures(two: Sweep) -> None:
    expected = {name: color_of(name) for name in ("Orca (Oracle)", "vLLM")}
    assert colors_on_the_page(two) == expected
    found = {chart.name: chart.figure for chart in charts(two)}
    bars, *_ = found["throughput"].data
    assert dict(zip(bars.y, bars.marker.color, strict=True)) == expected
    for name in ("latencies", "over_time"):
        assert {line.name: line.line.color for line in found[name].data} == expected, name


def test_the_lines_of_the_page_are_dashed_as_those_of_the_figures(tmp_path: Path) -> None:
    for i, rate in enumerate((1, 4)):
        write_job(tmp_path / str(i), "vLLM", trace(12, rate=rate), overrides=[f"workload.rate={rate}"])
    sweep = Sweep.read(tmp_path)
    lines = next(chart for chart in charts(sweep) if chart.name == "latencies").figure.data[::3]
    figure = latency_cdf.draw(sweep)
    assert figure is not None
    curves = figure.axes[0].get_lines()
    assert [line.line.color.lower() for line in lines] == [to_hex(curve.get_color()) for curve in curves]
    assert [line.line.dash for line in lines] == ["solid", "8px,3px"]
    assert [curve.get_linestyle() for curve in curves] == ["-", "--"]
