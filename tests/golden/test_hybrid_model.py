"""`VllmHybrid` beside a naive model that was written from the rules alone, and that one beside the engine's traces."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.golden.hybrid_model import Model, Req
from tests.golden.test_golden import HERE, SHARED, Unrefusing
from tests.golden.trace import Replay, Trace, expected, read

UNIFORM, HYBRID = (HERE, SHARED / "golden"), (HERE / "hybrid", SHARED / "golden_hybrid")
FIELDS = ("scheduled", "preempted", "tables", "admitted", "held", "num_free", "finished", "free")


def files(*folders: Path) -> list[Any]:
    found = [file for folder in folders for file in sorted(folder.glob("**/*.jsonl"))]
    return [pytest.param(file, id=f"{file.parent.name}-{file.stem}") for file in found]


def arrivals(trace: Trace, step: int) -> list[Req]:
    return [Req(told["id"], told["prompt"], told["output"], list(told["prompt"]))
            for told in trace.arrivals if told["step"] == step]  # fmt: skip


@pytest.mark.parametrize("file", files(*HYBRID))
def test_the_naive_model_is_the_engine(file: Path) -> None:
    trace = read(file)
    model = Model(trace.config)
    for number, theirs in enumerate(trace.steps):
        told = expected(model.step(arrivals(trace, number)))
        assert told["copies"] == theirs.get("copies", [])
        assert {key: told[key] for key in FIELDS} == {key: expected(theirs)[key] for key in FIELDS}


@pytest.mark.parametrize("file", [param for param in files(*UNIFORM) if "hybrid" not in str(param.id)])
def test_a_uniform_model_is_one_group(file: Path) -> None:
    """The steps of a uniform model's traces, of one full group; but its token is another."""
    trace = read(file)
    hybrid = Replay(Trace(file, {**trace.config, "groups": [{"kind": "full"}]}, trace.arrivals, trace.stuck, []),
                    Unrefusing, checked=False)  # fmt: skip
    uniform = Replay(trace, Unrefusing, checked=False)
    for _, ours, theirs in zip(trace.steps, hybrid.steps(), uniform.steps(), strict=False):
        tables = {name: table for name, (table,) in ours["tables"].items()}
        assert {**ours, "tables": tables} == {**ours, **theirs}


def made_up(seed: int) -> Trace:
    """Any workload over any groups."""
    draw = random.Random(seed)
    kind = draw.choice(["sliding", "sliding", "two windows", "one to five", "sliding only", "chunked", "none", "align",
                        "align", "fine", "export", "fine export", "sizes", "mla", "everything"])  # fmt: skip
    size, budget = draw.choice([1, 2, 4, 8]), draw.choice([4, 5, 6, 8, 16, 64])
    window = {"kind": "sliding", "window": draw.choice([2, 3, 5, 8, 11, 16])}
    state: dict[str, Any] = {"kind": "mamba"}
    apc, mode, unit = draw.random() < 0.7, "none", 0
    groups: list[dict[str, Any]] = [{"kind": "full"}, window]
    if kind == "two windows":
        groups.append({"kind": "sliding", "window": draw.choice([2, 4, 7, 12])})
    elif kind == "one to five":
        groups += [dict(window) for _ in range(4)]
    elif kind == "sliding only":
        groups = [window]
    elif kind == "chunked":
        groups = [{"kind": "full"}, *[{"kind": "chunked", "chunk": size * draw.choice([1, 2, 4])}] * draw.randint(1, 2)]
    elif kind == "none":
        groups, apc = [{"kind": "full"}, *[state] * draw.randint(1, 3)], False
    elif kind in ("align", "fine", "export", "fine export"):
        apc, mode = True, "align"
        size = draw.choice([4, 8]) if "fine" in kind else size
        unit = draw.choice([u for u in (1, 2, 4) if u < size]) if "fine" in kind else 0
        if "export" in kind:
            state |= {"checkpoint_blocks": 1, "checkpoint_alignment": draw.choice([1, unit or size, size])}
        groups = [{"kind": "full"}, *[state] * draw.randint(1, 3)]
    elif kind == "sizes":
        groups = [{"kind": "full", "block_size": size}, window | {"block_size": size * draw.choice([2, 4])}]
        if draw.random() < 0.5:
            groups[0]["block_size"], groups[1]["block_size"] = groups[1]["block_size"], groups[0]["block_size"]
    elif kind == "mla":
        groups = [{"kind": "mla"}]
    elif kind == "everything":
        apc, mode = True, "align"
        groups = [{"kind": "full"}, window, state, {"kind": "mla"}]
    draw.shuffle(groups)
    longest = draw.choice([48, 64])
    own = max(group.get("block_size", size) for group in groups)
    blocks = max(int(len(groups) * longest / own * draw.uniform(0.6, 2.5)), 4 * len(groups)) + 2
    config = {
        "block_size": size, "num_blocks": blocks, "max_num_seqs": draw.randint(1, 6), "budget": budget,
        "max_len": longest, "apc": apc, "retention": draw.choice([0, 0, None, 2 * own, 3 * own]), "chunked": True,
        "wm": draw.choice([0, 0, 0.1, 0.25]), "reserve": draw.random() < 0.7, "long_thr": draw.choice([0, 0, 3, 5]),
        "groups": groups, "mamba_mode": mode, **({"match_unit": unit} if unit else {}),
    }  # fmt: skip
    prompts = [list(range(first, first + longest)) for first in (0, 100)]
    told = []
    for number in range(draw.randint(3, 10)):
        length = draw.randint(1, min(longest - 2, 36))
        prompt = draw.choice(prompts)[:length]
        if draw.random() < 0.4:
            prompt[draw.randrange(length)] = 999
        told.append({"step": draw.randint(0, 12), "id": f"q{number}", "prompt": prompt, "output": draw.randint(1, 12)})
    return Trace(Path(f"seed {seed}"), config, sorted(told, key=lambda one: one["step"]), False, [])


def compare(seed: int, checked: bool = False) -> int:
    """Every step of a made-up workload, ours and the naive model's; how many."""
    trace = made_up(seed)
    ours, model = Replay(trace, Unrefusing, checked=checked), Model(trace.config)
    for number, step in enumerate(ours.steps()):
        naive = expected(model.step(arrivals(trace, number)))
        assert step.get("copies", []) == naive["copies"], (seed, number)
        assert {key: step[key] for key in FIELDS} == {key: naive[key] for key in FIELDS}, (seed, number)
        if number > 12 and (number > 90 or (not model.running and not model.waiting)):
            return number
    raise AssertionError


@pytest.mark.parametrize("seed", range(30))
def test_any_workload_takes_the_steps_of_the_naive_model(seed: int) -> None:
    assert compare(seed, checked=seed % 3 == 0) > 12


@pytest.mark.slow
def test_nine_hundred_workloads_take_the_steps_of_the_naive_model() -> None:
    assert sum(compare(seed) for seed in range(1000, 1900)) > 20_000
