"""How systems are drawn: a system has the same colour in every figure of every report.

Colour-blind readers can tell the colours apart. Dashes and markers differ between the systems of a figure, hatches
between those of one colour, so that figures are also readable in greyscale.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

import pandas as pd
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

# Okabe and Ito's, black and brown, and three of Paul Tol's muted ones.
BLUE, VERMILION, GREEN, PINK, AMBER, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
BLACK, BROWN, INDIGO, WINE, OLIVE = "#222222", "#8C6D31", "#332288", "#882255", "#999933"
PALETTE = (BLUE, VERMILION, GREEN, PINK, AMBER, SKY, BLACK, BROWN, INDIGO, WINE, OLIVE)
HATCHES = ("", "////", "....", "xxxx")  # of systems with one colour
LINES = (  # dash and marker
    ("-", "o"), ((0, (4, 1.5)), "s"), ((0, (1, 1.2)), "^"), ((0, (5, 1, 1, 1)), "D"), ((0, (9, 2)), "v"),
    ((0, (3, 1, 1, 1, 1, 1)), "P"), ((0, (1, 3)), "X"), ((0, (7, 1, 1, 1, 1, 1)), "<"),
)  # fmt: skip

# Colour and line of common systems. Any other gets its colour from a digest of its name.
OWN: dict[str, tuple[str, int]] = {
    "vLLM": (BLUE, 0),
    "continuous + paged(on_demand)": (BLUE, 5),
    "vLLM v1": (INDIGO, 4),
    "vllm_v1 + paged(on_demand)": (INDIGO, 7),
    "continuous + paged(on_demand) + prefix cache": (SKY, 1),
    "vAttention": (WINE, 2),
    "Orca (Max)": (VERMILION, 1),
    "Orca (Pow2)": (AMBER, 2),
    "Orca (Oracle)": (GREEN, 3),
    "FasterTransformer": (BROWN, 5),
    "static + contiguous(max_model_len)": (BROWN, 4),
    "static + paged(on_demand)": (SKY, 5),
    "continuous + contiguous(max_model_len)": (PINK, 6),
    "continuous + vllm_hybrid(on_demand)": (INDIGO, 2),
    "continuous + jenga(on_demand)": (WINE, 1),
    "continuous + radix(on_demand)": (OLIVE, 6),
    "vllm_v1 + radix(on_demand)": (OLIVE, 3),
    "continuous sarathi + paged(on_demand)": (GREEN, 1),
    "Ideal": (BLACK, 6),
}


class Look(NamedTuple):
    """How a system is drawn.

    Attributes:
        color: of lines and areas.
        dash: of lines, as matplotlib has it.
        hatch: of areas.
        marker: of points.
    """

    color: str
    dash: Any = LINES[0][0]
    hatch: str = HATCHES[0]
    marker: str = LINES[0][1]


def color_of(system: str) -> str:
    """The colour of a system; one with keys in brackets (`vLLM [max_num_seqs=4]`) has the colour of the name alone."""
    name = system.partition(" [")[0]
    return OWN[name][0] if name in OWN else PALETTE[crc32(name.encode()) % len(PALETTE)]


def looks(systems: Iterable[str]) -> dict[str, Look]:
    """A look for each system of a figure: its colour, a hatch if others share that, and a line style of its own."""
    found: dict[str, Look] = {}
    colors: list[str] = []
    lines = list[int]()
    for name in sorted(set(systems), key=lambda name: (name not in OWN, name)):
        color = color_of(name)
        free = [line for line in range(len(LINES)) if line not in lines] or [len(name) % len(LINES)]
        line = OWN[name][1] if name in OWN else free[0]
        dash, marker = LINES[line]
        found[name] = Look(color, dash, HATCHES[colors.count(color) % len(HATCHES)], marker)
        colors.append(color)
        lines.append(line)
    return found


def system_looks(groups: pd.DataFrame) -> dict[str, Look]:
    """The look of each system of a comparison."""
    return looks(groups["system"].astype(str))


def row_looks(groups: pd.DataFrame, swept: list[str]) -> dict[str, Look]:
    """The look of each row, by its label: its system's, lighter with each further point of the sweep."""
    style = system_looks(groups)
    points = list(zip(*(groups[name].astype(str) for name in swept), strict=True)) or [()] * len(groups)
    at = {point: number for number, point in enumerate(dict.fromkeys(points))}
    named = zip(groups["label"], groups["system"].astype(str), points, strict=True)
    return {label: shaded(style[system], at[point], len(at)) for label, system, point in named}


def shaded(look: Look, number: int, count: int) -> Look:
    """Variant `number` of `count` of a look: the first unchanged, the last two thirds of the way to white."""
    if count < 2:
        return look
    pale = 0.66 * number / (count - 1)
    red, green, blue = (part + (1 - part) * pale for part in to_rgb(look.color))
    color = to_hex((red, green, blue))
    return look._replace(color=color, dash=LINES[number % len(LINES)][0]) if number else look


def ramp(count: int) -> list[str]:
    """Colours for ordered values (rates, sizes) that belong to no system: dark to light, also in greyscale."""
    return [to_hex(colormaps["cividis"](0.05 + 0.85 * at / max(count - 1, 1))) for at in range(count)]
