"""Tables written by columns against the `csv` module and `repr`, cell by cell."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics import requests as module
from harness.metrics.requests import write_requests
from harness.text import EXACT, decimal, lines, quoted, texts, whole

ODD = [0.0, -0.0, float("nan"), float("inf"), 1e-4, 9.9999e-05, 1e-9, 1e22, 0.1 + 0.2, 1 / 3, -1.5, 123456789012345.0]
# Some versions of `csv` write a lone carriage return without quotes.
CHARACTERS = st.one_of(st.sampled_from('",\n é'), st.characters(codec="utf-8", exclude_characters="\0\r"))


def written(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_whole_numbers_are_what_str_says(values: list[int]) -> None:
    assert lines([whole(np.array(values, dtype=np.int64))]).decode() == "".join(f"{value}\n" for value in values)


@pytest.mark.parametrize("places", [6, 9])
@given(
    st.lists(
        st.one_of(st.floats(), st.sampled_from(ODD), st.integers(0, 20 * EXACT).map(lambda ns: ns / 1e9)), min_size=1
    )
)
def test_decimals_are_what_repr_says_and_nan_is_nothing(places: int, values: list[float]) -> None:
    expected = "".join("\n" if value != value else f"{value!r}\n" for value in values)
    assert lines([decimal(np.array(values), places)]).decode() == expected


@pytest.mark.parametrize("places", [6, 9])
def test_every_length_of_a_decimal_and_every_number_of_zeros_at_its_ends(places: int) -> None:
    units = np.array([digit * 10**power + more for power in range(18) for digit in (1, 7, 10) for more in (0, 1, 90)])
    values = units / 10**places
    assert lines([decimal(values, places)]).decode().split() == [repr(value) for value in values.tolist()]


@given(st.lists(st.tuples(st.integers(0, 2000), st.text(CHARACTERS)), min_size=1))
def test_texts_are_quoted_as_csv_does(rows: list[tuple[int, str]]) -> None:
    numbers, words = zip(*rows, strict=True)
    columns = [whole(np.array(numbers)), texts(map(quoted, words)), whole(np.array(numbers))]
    assert lines(columns) == written([[number, word, number] for number, word in rows])


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_the_request_table_is_written_as_csv_does(
    at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS", at_once)
    table = pd.DataFrame({
        "id": np.arange(7),
        "reason": [None, 'too long, at "2049" tokens', None, "née\n", None, "", "none"],
        "arrival_s": [0.0, 1.5, float("nan"), 1e-05, 42423.123456789, 2e6, 1 / 3],
        "tpot_ms": [float("nan"), 1 / 3, 2.5, float("nan"), 1e3, 0.0, 7.0],
        "output_tokens": pd.array([1, None, 12345, None, 1_000_000, 0, 999], dtype="Int64"),
    })  # fmt: skip
    write_requests(table, tmp_path / "requests.csv")
    cells = [["" if pd.isna(cell) else cell for cell in table[name].astype(object)] for name in table]
    assert (tmp_path / "requests.csv").read_bytes() == written([list(table), *map(list, zip(*cells, strict=True))])
