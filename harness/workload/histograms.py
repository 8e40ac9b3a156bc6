"""Lengths of the PagedAttention paper's two data sets, read off its Fig. 11 as integer counts.

Source: W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
Fig. 11 (input and output lengths of ShareGPT and Alpaca). Bar heights were read from the figure's vector drawing and
scaled to whole requests: 79,731 pairs for ShareGPT, 52,002 for Alpaca, which is that data set's size. Each histogram
has 128 equal bins between its `low` and `high`. Inside a bin lengths are taken as uniform.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Histogram:
    """Counts in equal bins.

    Attributes:
        low, high: edges of the first and the last bin, tokens.
        counts: requests in each bin.
    """

    low: float
    high: float
    counts: tuple[int, ...]

    def sample(self, random: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
        """`count` lengths, int64, whole numbers from ceil(low) to floor(high), uniform within each bin."""
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        cumulated = np.cumsum(self.counts)
        bins = np.searchsorted(cumulated, random.integers(0, cumulated[-1], count), side="right")
        lengths = edges[bins] + random.random(count) * (edges[bins + 1] - edges[bins])
        return np.rint(lengths).astype(np.int64)


# fmt: off
HISTOGRAMS: dict[str, Histogram] = {
    "sharegpt_input": Histogram(1.0, 2028.0, (
        21945, 16255, 7505, 4716, 3185, 2536, 1753, 1493, 1185, 1008, 922, 830, 609, 683, 659, 521, 518, 424,
        412, 414, 445, 397, 432, 432, 364, 369, 352, 347, 303, 260, 233, 254, 280, 263, 228, 198, 178, 249, 181,
        171, 190, 167, 156, 180, 168, 145, 171, 142, 133, 119, 154, 149, 167, 141, 107, 76, 116, 111, 126, 95,
        94, 104, 124, 121, 122, 109, 119, 129, 127, 95, 124, 112, 99, 89, 80, 63, 69, 64, 70, 52, 64, 69, 54,
        53, 69, 60, 46, 39, 49, 45, 38, 45, 34, 46, 44, 41, 32, 34, 22, 41, 33, 29, 35, 39, 24, 18, 36, 33, 19,
        20, 23, 15, 25, 17, 22, 21, 17, 11, 20, 10, 8, 10, 8, 4, 12, 3, 1, 5,
    )),
    "sharegpt_output": Histogram(1.0, 2009.0, (
        3152, 2786, 2489, 1960, 2268, 2441, 2304, 2378, 2179, 2000, 1983, 2177, 2114, 2265, 2269, 2289, 2269,
        2335, 2173, 2030, 1987, 1963, 1740, 1665, 1636, 1341, 1248, 1188, 1030, 980, 1031, 890, 850, 870, 730,
        657, 681, 622, 570, 598, 559, 481, 472, 447, 413, 387, 427, 410, 1016, 595, 492, 401, 433, 314, 262,
        258, 184, 194, 193, 211, 193, 184, 166, 158, 174, 149, 133, 125, 123, 105, 117, 147, 128, 102, 91, 86,
        97, 84, 93, 84, 77, 62, 44, 41, 46, 45, 27, 35, 35, 27, 34, 34, 41, 35, 31, 18, 28, 30, 12, 19, 15, 15,
        12, 13, 12, 9, 12, 8, 11, 9, 3, 5, 5, 9, 6, 8, 8, 4, 8, 0, 4, 3, 2, 1, 0, 0, 1, 1,
    )),
    "alpaca_input": Histogram(6.0, 508.0, (
        2883, 14295, 13722, 7974, 4754, 2703, 1641, 1057, 667, 479, 337, 271, 130, 176, 149, 125, 90, 72, 68,
        65, 44, 41, 36, 35, 29, 12, 21, 20, 11, 16, 8, 10, 7, 7, 9, 5, 1, 1, 2, 3, 2, 1, 2, 0, 2, 0, 0, 0, 1, 2,
        0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 2, 0, 2, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 1,
    )),
    "alpaca_output": Histogram(1.0, 1470.0, (
        11390, 8196, 4453, 3100, 3441, 3351, 3696, 3005, 2795, 1972, 1679, 1074, 823, 537, 478, 287, 255, 190,
        209, 156, 150, 109, 102, 87, 60, 61, 37, 56, 26, 25, 17, 23, 21, 20, 14, 11, 10, 13, 6, 4, 2, 5, 3, 6,
        6, 4, 2, 6, 4, 5, 1, 2, 3, 0, 2, 1, 1, 3, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
        0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
    )),
}
# fmt: on
