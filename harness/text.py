"""Numbers as the text of a CSV table, a column at a time: what `str` says of each of them, several times faster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

# uint32[words, rows]: the characters of a cell, four in a word, with zero bytes among them; the last byte is zero.
Cells = np.ndarray

EXACT = 10**15  # below, no double has a shorter text than the decimal of so many digits that it stands for
DIGITS = [f"{n:03d}" for n in range(1000)]


def _words(texts: Iterable[str]) -> np.ndarray:
    return np.array([text.encode() for text in texts], dtype="S4").view(np.uint32)


def _table(zero: str, alone: Iterable[str]) -> np.ndarray:
    """Of each number below 1000 its three digits: with no other digits on their far side, then with some."""
    return _words([zero, *list(alone)[1:], *DIGITS])


LEFT, UNITS = (_table(zero, (digits.lstrip("0") for digits in DIGITS)) for zero in ("", "0"))
RIGHT, TENTHS = (_table(zero, (digits.rstrip("0") for digits in DIGITS)) for zero in ("", "0"))
POINT, COMMA, END = _words(["\0\0\0.", "\0\0\0,", "\0\0\0\n"])


def lines(columns: Sequence[Cells]) -> bytes:
    """The rows of a table, without a header. It writes into the cells."""
    for cells in columns[:-1]:
        cells[-1] |= COMMA
    columns[-1][-1] |= END
    return np.concatenate(columns).tobytes("F").translate(None, b"\0")


def whole(values: np.ndarray) -> Cells:
    """int64[rows], as `str` writes them."""
    if values.min(initial=0) < 0:
        return texts(map(str, values.tolist()))
    last = (len(str(values.max(initial=0))) - 1) // 3
    cells = np.empty((last + 1, len(values)), dtype=np.uint32)
    for at in range(last, -1, -1):
        left = values // 1000
        cells[at] = (LEFT if at < last else UNITS)[np.minimum(values, 1000 + values - 1000 * left)]
        values = left
    return cells


def decimal(values: np.ndarray, places: int) -> Cells:
    """float64[rows], as `repr` writes them, NaN as nothing; fast where they have at most so many places (6 or 9)."""
    one = 10**places
    with np.errstate(over="ignore"):  # infinity is none of the plain ones
        units = np.rint(values * one)
    plain = (units / one == values) & (units < EXACT) & ((units >= one / 10_000) | (units == 0)) & ~np.signbit(values)
    units = np.where(plain, units, 0).astype(np.int64)
    integers = units // one
    right, more = units - integers * one, np.zeros(len(values), dtype=np.int64)
    cells = np.empty((places // 3, len(values)), dtype=np.uint32)
    for at in range(len(cells) - 1, -1, -1):
        left = right // 1000
        group = right - 1000 * left
        cells[at] = (RIGHT if at else TENTHS)[group + more]
        more = np.where(group, 1000, more)
        right = left
    before = whole(integers)
    before[-1] |= POINT
    cells = np.concatenate([before, cells])
    if not plain.all():
        odd = texts(repr(value) if value == value else "" for value in values[~plain].tolist())
        cells = np.pad(cells, ((0, max(len(odd) - len(cells), 0)), (0, 0)))
        cells[:, ~plain] = np.pad(odd, ((0, len(cells) - len(odd)), (0, 0)))
    return cells


def texts(values: Iterable[str]) -> Cells:
    """Any text without zero characters; see `quoted`."""
    encoded = [value.encode() for value in values]
    words = max(map(len, encoded), default=0) // 4 + 1
    return np.array(encoded, dtype=f"S{4 * words}").view(np.uint32).reshape(-1, words).T.copy()


def quoted(text: str) -> str:
    """A text as a CSV table needs it."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
