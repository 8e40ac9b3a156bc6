"""The configuration: what each key does, and what a wrong value is answered with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from omegaconf import DictConfig

from harness.groups import files, written
from harness.workload import Workload, WorkloadError, build_workload, prompt_tokens
from harness.workload.settings import Settings

Write = Callable[..., str]
GROUP = Path(__file__).parents[2] / "experiments" / "workload"
FIXED = {"num_requests": 4, "prompt": {"kind": "fixed", "value": 8}, "output": {"kind": "fixed", "value": 5}}
MOONCAKE = {"timestamp": 0, "input_length": 40, "output_length": 10, "block_size": 16, "hash_ids": [1, 2, 3]}


def build(config: dict[str, Any], max_model_len: int = 2048) -> Workload:
    return build_workload(config, max_model_len, seed=0)


def lengths(workload: Workload) -> list[tuple[int, int]]:
    return [(request.prompt_len, request.output_len) for request in workload.requests]


WRONG = [
    ("rate", 0, r"workload\.rate=0"),
    ("rate", -1.5, r"workload\.rate=-1\.5"),
    ("rate", float("inf"), r"workload\.rate=inf.*burst"),
    ("rate", float("nan"), r"workload\.rate=nan"),
    ("rate", "fast", r"workload\.rate=fast"),
    ("rate", True, r"workload\.rate=True"),
    ("rate", 1e-12, r"workload\.rate=1e-12"),
    ("cv", 0, r"workload\.cv=0"),
    ("time_scale", -1, r"workload\.time_scale"),
    ("arrival", "poison", r"workload\.arrival=poison.*did you mean poisson"),
    ("arrival", "poisson", r"workload\.rate is not set"),
    ("arrival", "closed_loop", r"workload\.concurrency is not set"),
    ("arrival", "trace", r"workload\.path"),
    ("fit", "shrink", r"workload\.fit=shrink"),
    ("invalid", "ignore", r"workload\.invalid=ignore"),
    ("num_requests", 0, r"workload\.num_requests=0"),
    ("num_requests", None, r"workload\.num_requests is not set"),
    ("limit", 2.5, r"workload\.limit=2\.5"),
    ("concurrency", 0, r"workload\.concurrency=0"),
    ("max_tokens", "fixed:0", r"workload\.max_tokens=fixed:0"),
    ("max_tokens", "times:-1", r"workload\.max_tokens"),
    ("max_tokens", "times:nan", r"workload\.max_tokens"),
    ("max_tokens", False, r"workload\.max_tokens"),
    ("num_request", 5, r"workload\.num_request: .*did you mean workload\.num_requests"),
    ("duration_s", 10, r"workload\.duration_s=10"),
    ("prompt", 5, r"workload\.prompt=5"),
    ("prompt", {"kind": "fixd"}, r"workload\.prompt\.kind=fixd"),
    ("prompt", {"kind": "fixed"}, r"workload\.prompt\.value is not set"),
    ("prompt", {"kind": "fixed", "value": 0}, r"workload\.prompt\.value=0"),
    ("prompt", {"kind": "fixed", "value": 2.5}, r"workload\.prompt\.value=2\.5"),
    ("prompt", {"kind": "fixed", "valu": 2}, r"workload\.prompt\.valu: .*did you mean workload.prompt.value"),
    ("output", {"kind": "uniform", "low": 5, "high": 4}, r"workload\.output\.high=4"),
    ("output", {"kind": "exponential", "mean": float("inf")}, r"workload\.output\.mean"),
    ("output", {"kind": "exponential", "mean": 9, "cap": 0}, r"workload\.output\.cap"),
    ("output", {"kind": "exponential", "mean": 9, "low": 5, "cap": 4}, r"workload\.output\.cap=4"),
    ("output", {"kind": "lognormal", "mean": 9, "cv": 0.01, "low": 5000}, r"workload\.output: no sample"),
    ("output", {"kind": "histogram", "histogram": "vicuna"}, r"workload\.output\.histogram=vicuna"),
]


@pytest.mark.parametrize(("key", "value", "said"), WRONG, ids=[f"{w[0]}={w[1]}"[:40] for w in WRONG])
def test_a_wrong_value_is_answered_with_its_key(key: str, value: object, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        build({**FIXED, key: value})


def test_every_workload_of_the_group_has_the_same_keys_and_runs() -> None:
    configs = {path.stem: cast(DictConfig, written(path)) for path in files(GROUP)}
    assert set(configs) >= {"sharegpt", "alpaca", "fixed", "uniform", "lognormal", "exponential", "trace"}
    shapes = set()
    for name, config in configs.items():
        assert config.name == name
        shapes.add((*config, *config.prompt, *config.output))
        assert set(config) == set(Settings.__dataclass_fields__)
        if name == "trace":
            with pytest.raises(WorkloadError, match=r"workload\.path is not set"):
                build_workload(cast(dict[str, Any], config), 2048, 0)
            continue
        assert len(build_workload(cast(dict[str, Any], config), 2048, 0).requests) == config.num_requests
        config.rate = 3.0
        workload = build_workload(cast(dict[str, Any], config), 2048, 0)
        assert workload.notes["arrival"] == "poisson"
        assert workload.requests[-1].arrival_ns > 0
        config.limit = 7
        assert len(build_workload(cast(dict[str, Any], config), 2048, 0).requests) == 7
    assert len(shapes) == 1


def test_burst_and_closed_loop() -> None:
    workload = build(FIXED)
    assert workload.notes["arrival"] == "burst"
    assert [request.arrival_ns for request in workload.requests] == [0] * 4
    assert workload.concurrency is None
    assert workload.notes["offered_rate"] is None
    closed = build({**FIXED, "arrival": "closed_loop", "concurrency": 3})
    assert closed.concurrency == 3
    assert len(closed.requests) == 4
    unused = build({**FIXED, "arrival": "burst", "rate": 2.0, "concurrency": 3}).notes["notices"]
    assert [said.split("=")[0] for said in unused] == ["workload.rate", "workload.concurrency"]


def test_a_trace_keeps_its_times_or_is_stretched_or_gets_others(write: Write) -> None:
    path = write([MOONCAKE | {"timestamp": 1000 * index} for index in range(11)])
    own = build({"path": path})
    assert own.notes["arrival"] == "trace"
    assert [request.arrival_ns for request in own.requests] == [index * 10**9 for index in range(11)]
    stretched = build({"path": path, "rate": 4.0})
    assert stretched.notes["offered_rate"] == pytest.approx(4)
    assert stretched.requests[1].arrival_ns == 250_000_000
    assert build({"path": path, "time_scale": 0.5}).requests[2].arrival_ns == 10**9
    assert len(build({"path": path, "duration_s": 3}).requests) == 3
    assert len(build({"path": path, "duration_s": 3, "time_scale": 0.5}).requests) == 6
    assert len(build({"path": path, "num_requests": 5}).requests) == 5
    poisson = build({"path": path, "arrival": "poisson", "rate": 100.0})
    assert poisson.requests[-1].arrival_ns < 10**9
    assert poisson.requests[-1].hash_ids is not None
    assert build({"path": path, "arrival": "burst"}).requests[-1].arrival_ns == 0
    timed = build({"path": path, "arrival": "poisson", "rate": 2.0, "duration_s": 3})
    assert timed.requests[-1].arrival_ns < 3e9
    for key, value in (("time_scale", 1e300), ("rate", 1e-300)):
        with pytest.raises(WorkloadError, match=rf"workload\.{key}=.*would arrive after"):
            build({"path": path, key: value})
    with pytest.raises(WorkloadError, match="arrive at once"):
        build({"path": write([MOONCAKE, MOONCAKE]), "rate": 2.0})


def test_fit(write: Write) -> None:
    rows = [MOONCAKE, MOONCAKE | {"output_length": 40}, MOONCAKE | {"output_length": 10, "input_length": 35}]
    path = write([*rows, *[MOONCAKE | {"input_length": 33}] * 6])
    dropped = build({"path": path}, 50)
    assert dropped.notes["dropped_fit"] == 1
    assert "1 of 9 rows" in (dropped.banner or "")
    clipped = build({"path": path, "fit": "clip"}, 50)
    assert clipped.notes["clipped"] == 1
    assert lengths(clipped)[1] == (10, 40)
    assert list(clipped.requests[1].hash_ids) == [1]
    scaled = build({"path": path, "fit": "scale"}, 50)
    assert scaled.notes["scaled"] == 1
    assert lengths(scaled)[1] == (25, 25)
    assert list(scaled.requests[1].hash_ids) == [1, 2]
    for workload in (clipped, scaled):
        beginning = prompt_tokens(workload.requests[1], 1000, 0)
        assert (beginning == prompt_tokens(workload.requests[0], 1000, 0)[: len(beginning)]).all()
    with pytest.raises(WorkloadError, match=rf"{path}:2: prompt 40 \+ output 40 tokens exceed max_model_len=50"):
        build({"path": path, "fit": "error"}, 50)
    hopeless = build({"path": write([MOONCAKE, MOONCAKE | {"output_length": 60}]), "fit": "clip"}, 50)
    assert hopeless.notes["dropped_fit"] == 1
    assert hopeless.banner is not None
    assert "1 of 2 rows" in hopeless.banner


def test_scale_always_fits(write: Write) -> None:
    rows = [{"prompt_len": p, "output_len": o} for p in (1, 2, 7, 1000) for o in (1, 3, 999, 10**6)]
    for longest in (2, 3, 10, 77):
        for prompt, output in lengths(build({"path": write(rows), "fit": "scale"}, longest)):
            assert prompt >= 1
            assert output >= 1
            assert prompt + output <= longest


def test_what_clients_declare(write: Write) -> None:
    def caps(path: str, spec: object) -> list[tuple[int, int | None]]:
        workload = build({"path": path, "max_tokens": spec}, 100)
        return [(request.output_len, request.max_tokens) for request in workload.requests]

    path = write([{"prompt_len": 60, "output_len": 10, "max_tokens": 30}, {"prompt_len": 20, "output_len": 30}])
    assert caps(path, "auto") == [(10, 30), (30, 30)]
    assert caps(path, True) == [(10, 10), (30, 30)]
    assert caps(path, "times:2") == [(10, 20), (30, 60)]
    assert caps(path, "times:1000") == [(10, 40), (30, 80)]
    assert caps(path, "fixed:16") == [(10, 16), (16, 16)]
    assert caps(path, "model_max") == [(10, 40), (30, 80)]
    long = write([{"prompt_len": 60, "output_len": 5000, "max_tokens": 7}])
    assert caps(long, "auto") == [(7, 7)]
    with pytest.raises(WorkloadError, match="fit max_model_len=100"):
        caps(long, "model_max")
