"""`pieces.parquet`: the time of each token of each request (from a server: of each streamed chunk)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from harness.files import written

FILE = "pieces.parquet"


def write_token_times(times: Mapping[int, array[int]], folder: Path) -> None:
    """Write the table: `request`, `time_s`.

    Args:
        times: token times in ns, by request id.
    """
    counts = [len(of) for of in times.values()]
    parts = [np.zeros(0, np.int64), *(np.frombuffer(of, dtype=np.int64) for of in times.values())]
    request = np.repeat(np.fromiter(times, dtype=np.int64), counts)
    with written(folder / FILE, "wb") as file:
        pd.DataFrame({"request": request, "time_s": np.concatenate(parts) / 1e9}).to_parquet(file, index=False)


def read_token_times(folder: Path) -> dict[int, np.ndarray] | None:
    """The token times of each request in s, in order; None if the run kept none."""
    if not (folder / FILE).exists():
        return None
    table = pd.read_parquet(folder / FILE).sort_values(["request", "time_s"])
    return {
        int(request): of.to_numpy()  # type: ignore[arg-type]
        for request, of in table.groupby("request")["time_s"]
    }
