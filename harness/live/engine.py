"""The engine's own numbers: its Prometheus metrics, read once a second, under each engine's names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
import pandas as pd

COLUMNS = ("start_s", "running", "waiting", "kv_in_use_pct", "preemptions", "prefix_queries", "prefix_hits",
           "prompt_tokens", "output_tokens", "steps", "step_tokens")  # fmt: skip
SINCE_START = COLUMNS[4:]  # counters: given as the increase since the first reading
# Metrics of each column, of which the first that exists counts: (name, factor).
NAMES: Mapping[str, tuple[tuple[str, float], ...]] = {
    "running": (("vllm:num_requests_running", 1), ("sglang:num_running_reqs", 1), ("llamacpp:requests_processing", 1),
                ("tgi_batch_current_size", 1)),
    "waiting": (("vllm:num_requests_waiting", 1), ("sglang:num_queue_reqs", 1), ("llamacpp:requests_deferred", 1),
                ("tgi_queue_size", 1)),
    "kv_in_use_pct": (("vllm:kv_cache_usage_perc", 100), ("vllm:gpu_cache_usage_perc", 100),
                      ("sglang:token_usage", 100), ("llamacpp:kv_cache_usage_ratio", 100)),
    "preemptions": (("vllm:num_preemptions_total", 1), ("sglang:num_retracted_requests_total", 1),
                    ("sglang:num_retracted_reqs_total", 1)),
    "prefix_queries": (("vllm:prefix_cache_queries_total", 1), ("vllm:gpu_prefix_cache_queries_total", 1),
                       ("sglang:prompt_tokens_total", 1)),
    "prefix_hits": (("vllm:prefix_cache_hits_total", 1), ("vllm:gpu_prefix_cache_hits_total", 1),
                    ("sglang:cached_tokens_total", 1)),
    "prompt_tokens": (("vllm:prompt_tokens_total", 1), ("sglang:prompt_tokens_total", 1),
                      ("llamacpp:prompt_tokens_total", 1)),
    "output_tokens": (("vllm:generation_tokens_total", 1), ("sglang:generation_tokens_total", 1),
                      ("llamacpp:tokens_predicted_total", 1)),
    "steps": (("vllm:iteration_tokens_total_count", 1),),
    "step_tokens": (("vllm:iteration_tokens_total_sum", 1),),
}  # fmt: skip
SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Samples:
    """One reading of a metrics page: name → values with their labels."""

    def __init__(self, text: str) -> None:
        self.found: dict[str, list[tuple[str, float]]] = {}
        for line in text.splitlines():
            if match := SAMPLE.match(line):
                name, labels, value = match.groups()
                try:
                    self.found.setdefault(name, []).append((labels or "", float(value)))
                except ValueError:
                    continue

    def value(self, *names: tuple[str, float]) -> float | None:
        """The first metric that exists, summed over its labels (data-parallel engines); None if none exists."""
        for name, factor in names:
            if name in self.found:
                return factor * sum(value for _, value in self.found[name])
        return None

    def labels(self, name: str) -> dict[str, str]:
        """All labels of an `…_info` metric."""
        return dict(LABEL.findall(self.found[name][0][0])) if name in self.found else {}

    def row(self) -> dict[str, float | None]:
        """`COLUMNS`; None where there is no metric."""
        return {column: self.value(*names) for column, names in NAMES.items()}

    @property
    def pool(self) -> dict[str, Any]:
        """Size and settings of the engine's KV pool, if its metrics have them."""
        told = self.labels("vllm:cache_config_info") or self.labels("sglang:cache_config_info")
        blocks, size = told.get("num_gpu_blocks", ""), told.get("block_size") or told.get("page_size") or ""
        found: dict[str, Any] = {}
        if size.isdigit():
            found["block_size"] = int(size)
        if blocks.isdigit() and size.isdigit():
            found["capacity"] = int(blocks) * int(size)
        elif told.get("num_pages", "").isdigit() and size.isdigit():
            found["capacity"] = int(told["num_pages"]) * int(size)
        if told.get("enable_prefix_caching") in ("True", "False"):
            found["enable_prefix_caching"] = told["enable_prefix_caching"] == "True"
        return found


class Scraper:
    """Polls a metrics page; if there is none, there are no rows, and `problem` says why.

    Attributes:
        rows: `COLUMNS` of each reading.
        pool: see `Samples.pool`.
        problem: why there are no rows.
    """

    def __init__(self, session: aiohttp.ClientSession, url: str, every_s: float, headers: Mapping[str, str]) -> None:
        self.session, self.url, self.every_s, self.headers = session, url, every_s, headers
        self.rows: list[dict[str, Any]] = []
        self.pool: dict[str, Any] = {}
        self.problem: str | None = None

    async def run(self, now: Callable[[], int]) -> None:
        """Read every `every_s` seconds until cancelled; give up if the first reading finds no page."""
        while await self.take(now()) or self.rows:
            await asyncio.sleep(self.every_s)

    async def take(self, now: int) -> bool:
        """Read once; whether that worked."""
        try:
            limit = aiohttp.ClientTimeout(total=5)
            async with self.session.get(self.url, headers=self.headers, timeout=limit) as response:
                text = await response.text()
                if response.status != 200:
                    self.problem = self.problem or f"{self.url}: HTTP {response.status}"
                    return False
        except (aiohttp.ClientError, OSError, TimeoutError, UnicodeDecodeError) as error:
            self.problem = self.problem or f"{self.url}: {error or type(error).__name__}"
            return False
        samples = Samples(text)
        row = samples.row()
        if all(value is None for value in row.values()):
            self.problem = self.problem or f"{self.url}: no metric of vLLM, SGLang, llama.cpp or TGI"
            return False
        self.pool = self.pool or samples.pool
        self.rows.append({"start_s": now / 1e9, **row})
        return True

    def table(self) -> pd.DataFrame:
        """One row per reading; counters start at 0 with the first one, metrics that never came are empty."""
        table = pd.DataFrame(self.rows, columns=list(COLUMNS)).astype("float64")
        for name in SINCE_START:
            table[name] -= table[name].iloc[0] if len(table) else 0
        return table
