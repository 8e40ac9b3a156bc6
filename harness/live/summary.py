"""What a job on a live server reports beside its latencies: the engine's own numbers, and warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from omegaconf import DictConfig

from harness.config.server import Server
from harness.live.about import ServerInfo
from harness.live.log import ClientLog

if TYPE_CHECKING:
    from harness.live.serve import LiveRun

LATE_MS = 10  # delay of sends, 99th percentile: more is a warning
BUSY_PCT = 80  # of one core, which is all that an event loop can use: more is a warning


def engine_side(metrics: pd.DataFrame | None) -> dict[str, float | None]:
    """From `engine.csv`: means over the time in which something ran, and totals of counters; None = not reported."""
    if metrics is None:
        return dict.fromkeys(("mean_batch_size", "kv_in_use_pct", "kv_in_use_max_pct", "waiting_mean", "preemptions",
                              "prefix_hit_pct", "steps"))  # fmt: skip
    busy = metrics[(metrics["running"] > 0) | metrics["running"].isna()]
    queries, hits = _last(metrics["prefix_queries"]), _last(metrics["prefix_hits"])
    return {
        "mean_batch_size": _number(busy["running"].mean()),
        "kv_in_use_pct": _number(busy["kv_in_use_pct"].mean()),
        "kv_in_use_max_pct": _number(metrics["kv_in_use_pct"].max()),
        "waiting_mean": _number(busy["waiting"].mean()),
        "preemptions": _last(metrics["preemptions"]),
        "prefix_hit_pct": 100 * hits / queries if queries and hits is not None else None,
        "steps": _last(metrics["steps"]),
    }


def warnings_of(cfg: DictConfig, server: Server, about: ServerInfo, run: LiveRun, table: pd.DataFrame,
                row: dict[str, Any]) -> list[str]:  # fmt: skip
    """Warnings: what makes the numbers less certain, or different, than they seem."""
    log, replay = run.log, run.replay
    assert replay
    said = []
    late = row["lateness_p99_s"]
    if late is not None and late * 1e3 > LATE_MS:
        why = f" (server.max_connections={server.max_connections} held them back)" if server.max_connections else ""
        said.append(f"requests were sent late: 99th percentile {late * 1e3:,.0f} ms{why}; latencies count it")
    lag = row["client_lag_p99_ms"]
    if row["client_cpu_pct"] > BUSY_PCT:
        busy = f"it took {row['client_cpu_pct']:.0f} % of a core, and its loop came {lag or 0:.0f} ms"
        said.append(f"the client was the bottleneck: {busy} "
                    "late (99th percentile): measure from another machine, or at lower rates")  # fmt: skip
    elif lag is not None and lag > LATE_MS:
        said.append(f"the client's loop came {lag:.0f} ms late (99th percentile) though it took only "
                    f"{row['client_cpu_pct']:.0f} % of a core: something else had its cores, maybe the server; every "
                    "time here is that uncertain")  # fmt: skip
    lost = {name: int((table["status"] == name).sum()) for name in ("rejected", "failed", "unfinished")}
    if any(lost.values()):
        first = table.loc[table["status"] != "finished", "reason"].dropna()
        why = f"; the first reason: {first.iloc[0]}" if len(first) else ""
        said.append(f"{', '.join(f'{count} {name}' for name, count in lost.items() if count)}: see requests.csv{why}")
    odd = [(number, why) for number, (status, why) in log.reasons.items() if status == "finished"]
    if odd:
        said.append(f"{len(odd)} answers are odd; request {odd[0][0]}: {odd[0][1]}")
    said += [*_counting(log), *_other_prompts(log, table)]
    if replay.gone:
        said.append(replay.gone)
    longest = about.max_model_len
    if longest is not None and longest < cfg.max_model_len:
        said.append(f"the server takes up to {longest} tokens, max_model_len={cfg.max_model_len} here")
    if server.metrics_url and run.metrics is None and run.scraper:
        said.append(f"nothing is known of the engine itself: {run.scraper.problem}")
    return said


def _counting(log: ClientLog) -> list[str]:
    said = []
    if log.uncounted:
        said.append(f"the server gave no count of tokens for {log.uncounted} answers: each piece counts as one token")
    if log.merged:
        each = log.tokens / max(log.pieces, 1)
        said.append(f"{log.merged} answers came in fewer pieces than tokens ({each:.2f} tokens a piece): gaps between "
                    "tokens (ITL) are gaps between pieces; TPOT is by token")  # fmt: skip
    return said


def _other_prompts(log: ClientLog, table: pd.DataFrame) -> list[str]:
    """A warning about prompts in which the server counts another number of tokens than was sent."""
    asked = table.set_index("id")["prompt_tokens"]
    more = [count - int(asked[number]) for number, count in log.prompt_tokens.items() if count != asked[number]]
    if not more:
        return []
    return [f"the server counts other tokens in {len(more)} prompts than were sent ({min(more):+d} to {max(more):+d})"]


def _last(values: pd.Series) -> float | None:
    there = values.dropna()
    return float(there.iloc[-1]) if len(there) else None


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None
