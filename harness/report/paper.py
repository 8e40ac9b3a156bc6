"""Published numbers of the PagedAttention paper (arXiv 2309.06180), to show beside our own."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

# Fig. 2: average share of the KV pool in percent, OPT-13B, ShareGPT lengths, 15.7K slots, mapped to our columns.
# The paper's "external fragmentation & others" (buddy rounding, holes and free slots together) is one bucket.
FIG_2: dict[str, dict[str, float]] = {
    "Orca (Max)": {"used": 20.4, "reserved": 13.3, "over_reserved": 57.3, "external": 8.9},
    "Orca (Pow2)": {"used": 26.8, "reserved": 17.9, "over_reserved": 13.6, "external": 41.6},
    "Orca (Oracle)": {"used": 38.2, "reserved": 25.2, "over_reserved": 0.0, "external": 36.6},
    "vLLM": {"used": 96.3, "reserved": 1.05, "over_reserved": 1.04, "external": 1.65},
}


SLOTS = 15_728  # of its pool


def fig_2_applies(rows: pd.DataFrame) -> bool:
    """Whether these runs are comparable to Fig. 2: unchanged ShareGPT lengths, and a model whose layers all keep the
    same tokens."""
    if "workload" not in rows or ("kv_state_pct" in rows and rows["kv_state_pct"].notna().any()):
        return False
    return all("sharegpt" in str(name).lower() and "[" not in str(name) for name in rows["workload"])


def other_pool(capacities: Iterable[float]) -> str:
    """A clause for comparable runs with pools of another size than the paper's."""
    others = sorted({int(slots) for slots in capacities if abs(slots / SLOTS - 1) > 0.01})
    return f" with pools of {', '.join(f'{slots:,}' for slots in others)} slots (the paper's: 15.7K)" if others else ""
