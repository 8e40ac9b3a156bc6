"""Pictures of a report page, as `results/reference/page` has them.

    python -m tests.screenshots DIR OUT [MILLION]

DIR is the folder of a sweep or a run, with `report.html`; MILLION that of a long run. Into OUT come `light.png`,
`dark.png`, `narrow.png`, `map.png`, `moment_1.png` … `moment_3.png` and `million.png`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.browser import opened

WIDE, NARROW = 1280, 390  # pixels
TALL = 2400  # of a page, from its top
MOMENTS = (0.03, 0.5, 0.97)  # of the shortest of the runs shown: filling, full, running empty
SHORTEST = "Math.min(...maps.map((map) => map.times[map.moments]))"


async def pictures(page: Path, out: Path) -> None:
    """The page in light and dark, wide and narrow, its map, and the map at three moments."""
    for name, width, scheme in (("light", WIDE, "light"), ("dark", WIDE, "dark"), ("narrow", NARROW, "light")):
        async with opened(page, width, scheme) as browser:
            await browser.picture(out / f"{name}.png", height=TALL)
    async with opened(page, WIDE) as browser:
        if not await browser.run("data.maps.length > 0"):
            return
        await browser.picture(out / "map.png", "#map")
        for number, share in enumerate(MOMENTS, 1):
            await browser.run(f"setTime({SHORTEST} * {share})")
            await browser.picture(out / f"moment_{number}.png", "#map")


async def top(page: Path, out: Path) -> None:
    """The beginning of a page."""
    async with opened(page, WIDE) as browser:
        await browser.picture(out, height=TALL)


def main(words: list[str]) -> int:
    """The command line."""
    if len(words) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    pages = [Path(word) / "report.html" for word in (words[0], *words[2:])]
    if missing := [path for path in pages if not path.exists()]:
        print(
            f"error: there is no {missing[0]}: python -m harness report {missing[0].parent} makes it", file=sys.stderr
        )
        return 2
    out = Path(words[1])
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(pictures(pages[0], out))
    if len(pages) == 2:
        asyncio.run(top(pages[1], out / "million.png"))
    print(*sorted(map(str, out.glob("*.png"))), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
