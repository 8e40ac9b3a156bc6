"""The report page in a headless Chromium: it opens from the disk, needs nothing else, and does what its reader does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness.job import run_job
from harness.report.page import write_page
from harness.report.sweep import Sweep
from harness.tasks.claims import composed
from tests import screenshots
from tests.browser import CHROMIUM, Page, opened

from .test_page import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CHROMIUM, reason="no Chromium is installed")]
TWO = ("static + contiguous(max_model_len)", "vLLM")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page [x] #1")
    for name in ("static+contiguous+max_model_len", "vllm"):
        overrides = [*SMALL, f"system={name}"]
        assert run_job(composed(overrides), folder / name, overrides)["status"] == "finished"
    return write_page(Sweep.read(folder), findings=["one"], notes=["two"])


def visit(path: Path, what: Callable[[Page], Awaitable[Any]], **how: Any) -> Any:
    async def go() -> Any:
        async with opened(path, **how) as page:
            done = await what(page)
            assert page.problems == []
            assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
            return done

    return asyncio.run(go())


SEEN = "document.querySelectorAll('[data-chart]').forEach(chart);"
NAMES = "(id) => document.querySelector(`[data-chart=${id}]`).data"


def test_its_pictures_are_taken_by_one_command(path: Path, tmp_path: Path) -> None:
    assert screenshots.main([str(path.parent), str(tmp_path)]) == 0
    names = {picture.stem for picture in tmp_path.glob("*.png") if picture.stat().st_size > 5000}
    assert names == {"light", "dark", "narrow", "map", "moment_1", "moment_2", "moment_3"}
    assert len({picture.read_bytes() for picture in tmp_path.glob("*.png")}) == 7  # each shows something of its own


def test_a_click_on_a_row_switches_the_system_off_everywhere(path: Path) -> None:
    async def what(page: Page) -> None:
        told = f"""({{ maps: maps.filter((map) => !map.box.hidden).map((map) => map.label),
            lines: [...new Set(({NAMES})("latencies").map((trace) => trace.name))],
            bars: ({NAMES})("throughput")[0].y, lengths: ({NAMES})("throughput")[0].x.length }})"""
        click = "document.querySelector('tr[data-system^=static]').click();"
        both = await page.run(SEEN + told)
        assert both == {"maps": [*TWO], "lines": [*TWO], "bars": [*TWO], "lengths": 2}
        assert await page.run(click + told) == {"maps": ["vLLM"], "lines": ["vLLM"], "bars": ["vLLM"], "lengths": 1}
        assert await page.run(click + told) == both

    visit(path, what)


def test_the_slider_moves_the_moment_and_sorting_sorts(path: Path) -> None:
    async def what(page: Page) -> None:
        moved = """(value) => { $("when").value = value; $("when").dispatchEvent(new Event("input"));
            return [$("clock").textContent, $("moment-text").textContent]; }"""
        first, later = await page.run(f"({moved})(50)"), await page.run(f"({moved})(300)")
        assert first[0] != later[0]
        assert first[1] != later[1]
        order = "[...document.querySelectorAll('tr[data-system]')].map((row) => row.dataset.system)"
        assert await page.run(order) == [*TWO]
        await page.run("document.querySelectorAll('#table th')[1].click()")  # throughput, the most first
        assert await page.run(order) == [*reversed(TWO)]

    visit(path, what)


def test_play_runs_and_stops(path: Path) -> None:
    async def what(page: Page) -> None:
        await page.run("$('when').value = 0; $('when').dispatchEvent(new Event('input')); $('play').click()")
        await asyncio.sleep(1.5)
        assert await page.run("now") > 0
        await page.run("$('play').click()")
        stopped = await page.run("now")
        await asyncio.sleep(0.3)
        assert await page.run("now") == stopped

    visit(path, what)


@pytest.mark.parametrize("width", [360, 480, 1280, 1920])
def test_nothing_stands_out_of_the_window(path: Path, width: int) -> None:
    async def what(page: Page) -> None:
        await page.run(SEEN)
        assert await page.run("document.documentElement.scrollWidth") <= width

    visit(path, what, width=width)


def test_dark_as_the_system_has_it_and_by_the_button(path: Path) -> None:
    async def what(page: Page) -> None:
        ground = "getComputedStyle(document.body).backgroundColor"
        dark = await page.run(ground)
        assert sum(map(int, dark[4:-1].split(","))) < 150
        assert await page.run(f"$('theme').click(), {ground}") == "rgb(255, 255, 255)"

    visit(path, what, scheme="dark")


def test_it_prints_on_several_pages_with_every_chart(path: Path) -> None:
    async def what(page: Page) -> None:
        pdf = await page.printed()
        assert pdf.startswith(b"%PDF")
        drawn = "[...document.querySelectorAll('[data-chart]')].every((div) => div.dataset.drawn)"
        assert await page.run(drawn)

    visit(path, what)
