"""A whole configuration against the schema."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from omegaconf import OmegaConf, open_dict

import harness.__main__  # noqa: F401  (its resolvers)
from allocators.paged import Paged
from harness.config import asked_by, settle, settled, without_effect
from harness.errors import HarnessError
from harness.job.build import build_allocator
from harness.tasks.claims import composed

FAST = ["device=simulated", "workload.num_requests=6"]


def mistakes(*overrides: str) -> list[str]:
    return settle(composed([*FAST, *overrides]), asked_by(overrides))[1]


@pytest.mark.parametrize(("overrides", "said"), [
    (["gpu_memory_utilization=true"], "gpu_memory_utilization=True: gpu_memory_utilization must be a finite number"),
    (["price_per_hour=-3"], "price_per_hour=-3"),
    (["price_per_hour=abc"], "price_per_hour=abc"),
    (["slo_ms.ttft=-1"], "slo_ms.ttft=-1"),
    (["slo_ms.ttft=2s"], "slo_ms.ttft=2s"),
    (["seed=18446744073709551616"], "seed=18446744073709551616"),
    (["seed=-1"], "seed=-1"),
    (["scheduler.watermark=abc"], "scheduler.watermark=abc"),
    (["allocator.block_size=true"], "allocator.block_size=True"),
    (["device=cpu", "model.config.num_attention_heads=0"], "model.config.num_attention_heads=0"),
    (["device=cpu", "model.config.num_attention_heads=7"], "model.config.hidden_size=256 must be a multiple"),
    (["model=llama_mini", "model.config.num_key_value_heads=3"], "model.config.num_key_value_heads=3"),
    (["device=cpu", "device.threads=-4"], "device.threads=-4"),
    (["device.dtype=banana"], "device.dtype=banana"),
    (["kv_slots=1000000000000"], "so many would take 2,048,000 GB"),
    (["kv_slots=null"], "kv_slots=None"),
    (["kv_slots=[1,2]"], "kv_slots=[1, 2]"),
    (["max_model_len=${kv_bytes}"], "(it is ${kv_bytes})"),
    (["workload.rate=${nowhere}"], "workload.rate=${nowhere}: its value can't be told"),
    (["slo_ms=3"], "slo_ms=3: slo_ms must be a group of keys: slo_ms.ttft"),
    (["simulation=null"], "simulation=None: simulation must be a group of keys"),
    (["workload.prompt=3"], "workload.prompt=3"),
    (["~seed"], "seed is missing: it must be a whole number"),
    (["+device.dtpe=float16"], "device.dtpe: there is no such key; did you mean device.dtype"),
    (["+simulation.exact=true"], "simulation.exact: there is no such key; did you mean simulation.exact_steps"),
    (["+slo_ms.p99=3"], "slo_ms.p99: there is no such key; the keys are ttft, tpot, e2e"),
    (["+workload.num_request=3"], "workload.num_request: there is no such key; did you mean workload.num_requests"),
    (["+allocator.blocksize=8"], "allocator.blocksize: Paged has no such argument; did you mean block_size"),
    (["+scheduler.max_seqs=8"], "scheduler.max_seqs: Continuous has no such argument"),
    (["+allocator.capacity=8"], "allocator.capacity: Paged has no such argument"),
    (["allocator._target_=allocators.paged.Pagd"], "allocators.paged has no 'Pagd'; did you mean Paged"),
    (["clock=measured"], "clock=measured does not go with device.kind=simulated"),
    (["device=cpu", "clock=virtual"], "clock=virtual does not go with device.kind=cpu"),
    (["device=cpu", "simulation.async_scheduling=on"], "simulation.async_scheduling=true needs a simulated device"),
    (["device.latency=null"], "device.latency is null"),
    ([f"workload.path={__file__[:-1]}"], f"there is no such file; did you mean {__file__}?"),
    (["model.config=/nowhere/config.json"], "there is no such file; there is no folder /nowhere either"),
    (["label=vLLM", "allocator.block_size=32"], "and this is continuous + paged(on_demand) [block_size=32]"),
    (["workload.arrival=poisson"], "workload.rate is not set"),
    (["workload.use_beam_search=yes"], "workload.use_beam_search=true with workload.n=1"),
    (["experiment=claims", "part=full_vlm"], "part=full_vlm: parts has no such name; did you mean full_vllm"),
    (["experiment=output_variance", "cap=33"], "max_model_len=None"),
    (["experiment=capacity", "search.metric=ttft_mean"], "did you mean ttft_mean_ms"),
    (["experiment=calibrate", "calibrate.concurrency=[0]"], "calibrate.concurrency=[0]"),
])  # fmt: skip
def test_a_mistake_is_told_with_its_key(overrides: list[str], said: str) -> None:
    assert any(said in mistake for mistake in mistakes(*overrides)), mistakes(*overrides)


def test_all_mistakes_are_told_at_once() -> None:
    assert [told.partition("=")[0] for told in mistakes("seed=-1", "clock=sundial", "price_per_hour=x")] == [
        "seed", "clock", "price_per_hour"]  # fmt: skip
    with pytest.raises(HarnessError, match=r"seed=-1.*\n.*clock=sundial"):
        settled(composed(["seed=-1", "clock=sundial"]))


def test_what_is_settled_is_what_the_program_takes() -> None:
    given = composed([*FAST, "allocator.enable_prefix_caching=OFF", "memory_map='yes'", "kv_bytes=12e9", "debug=n",
                      "seed=18446744073709551615", "simulation.exact_steps=No", "device.dtype=float32"])  # fmt: skip
    cfg, wrong = settle(given)
    assert wrong == []
    found = [cfg.allocator.enable_prefix_caching, cfg.memory_map, cfg.kv_bytes, cfg.debug, cfg.seed]
    assert found == [False, True, 12_000_000_000, False, 2**64 - 1]
    assert [type(value) for value in found] == [bool, bool, int, bool, int]
    assert given.allocator.enable_prefix_caching == "OFF"  # a copy was settled
    assert settle(cfg) == (cfg, [])
    assert OmegaConf.to_container(cfg)["scheduler"]["seed"] == "${seed}"  # type: ignore[call-overload,index]


# ---- plug-ins --------------------------------------------------------------------------------------------------------


class Own(Paged):
    def __init__(self, *args: Any, fast: bool = False, share: float = 0.5, count: int = 3, bare: Any = None, kept=True,
                 way: Literal["up", "down"] = "up", size: int | None = None, block_size: str = "any",
                 **kwargs: Any) -> None:  # fmt: skip
        super().__init__(*args, **kwargs)
        self.given = {"fast": fast, "share": share, "count": count, "bare": bare, "kept": kept, "way": way,
                      "size": size, "size of a block": block_size}  # fmt: skip


class Closed(Paged):
    def __init__(self, capacity: int, max_model_len: int, depth: int = 1) -> None:
        super().__init__(capacity, max_model_len)


OWN, CLOSED = (f"allocator._target_={__name__}.{name}" for name in ("Own", "Closed"))


def test_the_keys_of_a_plug_in_are_its_constructors() -> None:
    given = ["+allocator.fast=off", "+allocator.share=1", "+allocator.count=4.0", "+allocator.bare=off",
             "+allocator.kept=no", "+allocator.way=down", "+allocator.size=null", "allocator.block_size=huge",
             "allocator.enable_prefix_caching=off"]  # fmt: skip
    cfg, wrong = settle(composed([*FAST, OWN, *given]), asked_by([OWN, *given]))
    assert wrong == []
    allocator: Any = build_allocator(cfg, 1024, asked_by([OWN, *given]))
    assert allocator.given == {"fast": False, "share": 1, "count": 4, "bare": "off", "kept": False, "way": "down",
                               "size": None, "size of a block": "huge"}  # fmt: skip
    assert type(allocator.given["count"]) is int
    assert allocator.enable_prefix_caching is False


@pytest.mark.parametrize(("override", "said"), [
    ("+allocator.fast=3", "allocator.fast=3: allocator.fast must be true or false, as Own is annotated"),
    ("+allocator.share=yes", "allocator.share must be a finite number"),
    ("+allocator.count=true", "allocator.count must be a whole number"),
    ("+allocator.way=left", "allocator.way must be one of up, down"),
])  # fmt: skip
def test_an_annotation_is_what_a_plug_in_says_of_a_key(override: str, said: str) -> None:
    assert said in mistakes(OWN, override)[0]


def test_the_schema_refuses_no_key_of_a_plug_in() -> None:
    assert mistakes(OWN, "+allocator.anything=3", "+allocator.block=[1,2]") == []
    assert mistakes(CLOSED, "+allocator.depth=2") == []
    assert "Closed has no such argument; did you mean depth" in mistakes(CLOSED, "+allocator.deth=2")[0]
    with pytest.raises(HarnessError, match="unexpected keyword argument 'anything'"):  # it judges itself
        build_allocator(settle(composed([*FAST, OWN, "+allocator.anything=3"]))[0], 1024, {"allocator.anything"})


@pytest.mark.parametrize("policy", ["fcfs", "earliest_deadline", "{_target_: schedulers.orders.Priority}",
                                    "{_target_: tests.schedulers.test_orders.Aging}"])  # fmt: skip
def test_an_order_is_one_of_ours_or_a_class(policy: str) -> None:
    assert mistakes(f"scheduler.policy={policy}") == []


@pytest.mark.parametrize(("policy", "said"), [
    ("shortest", "scheduler.policy=shortest: scheduler.policy must be one of fcfs, "),
    ("shortest", "or an order of your own (`{_target_: my.Class, …}`); did you mean shortest_first?"),
    ("{class: my.Order}", "a mapping names its class by _target_"),
    ("{_target_: schedulers.orders.Priorty}", "scheduler.policy._target_=schedulers.orders.Priorty: "),
    ("{_target_: schedulers.orders.LongestPrefix, alocator: 3}", "LongestPrefix has no such argument"),
])  # fmt: skip
def test_an_order_that_can_not_be_is_told_before_anything_is_built(policy: str, said: str) -> None:
    assert said in mistakes(f"scheduler.policy={policy}")[0]


def test_a_plug_in_from_a_file_gets_every_key_that_it_takes() -> None:
    cfg = composed([*FAST])
    with open_dict(cfg):
        cfg.allocator = {"_target_": f"{__name__}.Own", "fast": "yes", "count": 2}
    cfg, wrong = settle(cfg)
    allocator: Any = build_allocator(cfg, 1024)
    assert (wrong, allocator.given["fast"], allocator.given["count"]) == ([], True, 2)


# ---- keys without an effect ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overrides", "said"), [
    (["workload=trace", f"workload.path={__file__}", "workload.prompt.kind=fixed", "workload.prompt.value=3"],
     ["workload.prompt.kind=fixed and workload.prompt.value=3 have no effect: they count only without workload.path"]),
    (["workload=trace", f"workload.path={__file__}", "workload.prompt={kind: fixed, value: 3}"],
     ["workload.prompt has no effect: it counts only without workload.path"]),
    (["workload=fixed", "workload.prompt.mean=3"],
     ["workload.prompt.mean=3 has no effect: it counts only with workload.prompt.kind=lognormal or exponential"]),
    (["workload.cv=2"], ["workload.cv=2 has no effect: it counts only with workload.arrival=gamma"]),
    (["workload.skip_s=5", "workload.time_unit=ms"],
     ["workload.skip_s=5 and workload.time_unit=ms have no effect: they count only with workload.path"]),
    (["workload.invalid=drop"], ["workload.invalid=drop has no effect: it counts only with workload.path"]),
    (["workload.arrival=burst", "workload.time_scale=2"],
     ["workload.time_scale=2 has no effect: it counts only where requests arrive over time"]),
    (["workload.rate=1", "workload.duration_s=60"],
     ["workload.num_requests=6 has no effect: it counts only without workload.duration_s"]),
    (["kv_slots=100", "kv_bytes=8e9"], ["kv_slots=100 has no effect: it counts only without kv_bytes"]),
    (["device.threads=2", "device.kernels=torch"],
     ["device.kernels=torch has no effect: it counts only on a real device",
      "device.threads=2 has no effect: it counts only on a CPU"]),
    (["device=cpu", "simulation.exact_steps=true"],
     ["simulation.exact_steps=True has no effect: it counts only with device.kind=simulated"]),
    (["allocator.host_slots=64"],
     ["allocator.host_slots=64 has no effect: it counts only with scheduler.preemption=swap"]),
    (["scheduler.length_predictor=history"],
     ["scheduler.length_predictor=history has no effect: it counts only where something goes by the length of "
      "answers"]),
    (["scheduler.length_predictor=history", "scheduler.policy=shortest_first"], []),
    (["reservation=exact", "scheduler.watermark=0.1"], ["scheduler.watermark=0.1 has no effect: it counts only with "
      "reservation._target_=schedulers.reservation.on_demand"]),
    (["+basline=vllm"], ["basline=vllm has no effect: there is no such key; did you mean baseline?"]),
    (["+lanes=4", "system=continuous_lanes"], []),
    (["experiment=capacity", "workload.rate=3"],
     ["workload.num_requests=6 has no effect: it counts only without workload.duration_s",
      "workload.rate=3 has no effect: harness.tasks.capacity.find_capacity sets it itself, or does without"]),
    (["experiment=paging_overhead", "device=cpu", "allocator.block_size=8"],
     ["allocator.block_size=8 and workload.num_requests=6 have no effect: harness.tasks.paging_overhead.measure sets "
      "them itself, or does without"]),
    (["seed=3", "workload=alpaca", "workload.n=2", "label=mine"], []),
])  # fmt: skip
def test_what_has_no_effect_is_said(overrides: list[str], said: list[str]) -> None:
    cfg, wrong = settle(composed([*FAST, *overrides]))
    assert wrong == []
    assert without_effect(cfg, asked_by([*FAST, *overrides])) == said
