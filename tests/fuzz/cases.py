"""A configuration with a tiny trace, in one line that can be pasted, and the scheduler that it means.

A line holds overrides as `python -m harness` takes them, and four words of its own:

    layout=window            what the layers keep (`LAYOUTS`); the pool has `kv_slots` times a token of every layer
    latency=fitted           the step times (`tests.conformance.jumps.LATENCIES`)
    concurrency=2            requests in flight of a closed loop
    requests=0:5>3;700:4>2,n2,b   arrival in ns : prompt > output, and what else a request says (`FLAGS`)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from allocators.layout import KVLayout, LayerGroup, State
from harness.config import settled
from harness.groups import written
from harness.installation import EXPERIMENTS
from harness.job.build import build_scheduler
from harness.tasks.claims import composed
from schedulers.base import Scheduler
from schedulers.request import Request

GROUPS = ("allocator", "reservation", "scheduler")
OWN = ("layout", "latency", "concurrency")
FLAGS = {"m": "max_tokens", "p": "priority", "s": "session", "n": "n", "b": "use_beam_search", "f": "ttft_slo_ms",
         "d": "deadline_ms", "t": "family"}  # fmt: skip  # requests of one family begin with the same tokens
STATES = 2  # of sequences, for which a pool has room besides
FULL, STATE = LayerGroup("full", (0,), 1, 1, 1, 1), State((6,), 1)
UNIFORM = KVLayout((FULL,))  # where a line says nothing: it counts in slots
LAYOUTS = {
    "window": KVLayout((FULL, LayerGroup("window", (1, 2), 1, 1, 1, 1, reach=5))),
    "windows": KVLayout((LayerGroup("window", (0,), 1, 1, 1, 1, reach=3), LayerGroup("window", (1,), 2, 1, 1, 1, 9))),
    "chunk": KVLayout((FULL, LayerGroup("chunk", (1,), 1, 1, 1, 1, reach=4))),
    "latent": KVLayout((LayerGroup("latent", (0, 1), 1, 3, 0, 1), LayerGroup("window", (2,), 1, 3, 0, 1, reach=6))),
    "state": KVLayout((FULL, LayerGroup("state", (1, 2), states=(STATE,)))),
}


@dataclass(frozen=True)
class Row:
    """A request as a line says it; `more` holds what `FLAGS` names."""

    arrival_ns: int
    prompt_len: int
    output_len: int
    more: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        letters = {name: letter for letter, name in FLAGS.items()}
        said = [letters[name] + ("" if value is True else str(value)) for name, value in self.more]
        return ",".join([f"{self.arrival_ns}:{self.prompt_len}>{self.output_len}", *said])

    @classmethod
    def read(cls, text: str) -> Row:
        first, *flags = text.split(",")
        arrival, _, lengths = first.partition(":")
        prompt, _, output = lengths.partition(">")
        more = [(FLAGS[flag[0]], _value(flag[0], flag[1:])) for flag in flags]
        return cls(int(arrival), int(prompt), int(output), tuple(more))

    def request(self, number: int) -> Request:
        more: dict[str, Any] = dict(self.more)
        if (family := more.pop("family", None)) is not None:
            more["token_ids"] = [100 * family + at for at in range(self.prompt_len)]
        return Request(number, self.arrival_ns, self.prompt_len, self.output_len, **more)


@dataclass(frozen=True)
class Case:
    """Overrides by key, the line's own words among them, and the requests."""

    keys: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return " ".join([*(f"{key}={value}" for key, value in self.keys), f"requests={';'.join(map(str, self.rows))}"])

    @classmethod
    def read(cls, line: str) -> Case:
        pairs = [word.partition("=")[::2] for word in line.split()]
        rows = next(value for key, value in pairs if key == "requests")
        return cls(tuple((k, v) for k, v in pairs if k != "requests"),
                   tuple(Row.read(text) for text in rows.split(";") if text))  # fmt: skip

    def get(self, key: str, default: str = "") -> str:
        return dict(self.keys).get(key, default)

    def without(self, key: str) -> Case:
        return replace(self, keys=tuple(pair for pair in self.keys if pair[0] != key))

    def with_key(self, key: str, value: str) -> Case:
        return replace(self, keys=(*self.keys, (key, value)))

    def having(self, key: str, value: object) -> Case:
        return replace(self, keys=tuple((k, str(value) if k == key else v) for k, v in self.keys))

    def requests(self) -> list[Request]:
        return [row.request(number) for number, row in enumerate(self.rows)]

    def settled(self) -> DictConfig:
        """The whole configuration.

        Raises:
            HarnessError: there is a mistake in it.
        """
        return settled(_configured(self._overrides()), self._overrides())

    def scheduler(self, cfg: DictConfig) -> Scheduler:
        """A new one over an empty pool.

        Raises:
            HarnessError: what the configuration asks for is refused.
        """
        layout = LAYOUTS.get(self.get("layout"), UNIFORM)
        tokens = cfg.kv_slots * layout.token_bytes // layout.unit_bytes
        capacity = tokens + STATES * layout.state_bytes // layout.unit_bytes
        return build_scheduler(cfg, capacity, self._overrides(), layout)

    def _overrides(self) -> dict[str, str]:
        return {key: value for key, value in self.keys if key not in OWN}


def _value(letter: str, text: str) -> Any:
    return True if letter == "b" else text if letter == "s" else int(text)


def _configured(overrides: dict[str, str]) -> DictConfig:
    """As Hydra composes it, and a hundred times sooner: each group's member once, the rest is set."""
    values = copy.deepcopy(_base())
    for group in GROUPS:
        if group in overrides:
            values[group] = dict(_member(group, overrides[group]))
    for key, value in overrides.items():
        if key not in GROUPS:
            *sections, leaf = key.split(".")
            section = values
            for name in sections:
                section = section[name]
            section[leaf] = _plain(value)
    return OmegaConf.create(values)


def _plain(text: str) -> Any:
    return {"true": True, "false": False, "null": None}.get(text, _number(text))


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@lru_cache
def _base() -> dict[str, Any]:
    return OmegaConf.to_container(composed(["device=simulated"]))  # type: ignore[return-value]


@lru_cache(maxsize=100)
def _member(group: str, name: str) -> dict[str, Any]:
    return OmegaConf.to_container(written(EXPERIMENTS / group / f"{name}.yaml"))  # type: ignore[return-value]


def keys_of(group: str, name: str) -> list[str]:
    """The keys of a group's member."""
    return [key for key in _member(group, name) if key != "_target_"]
