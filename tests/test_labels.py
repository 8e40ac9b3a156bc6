"""What a set-up is called: a published name is that of the whole published set-up, whatever its files are called."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import allocators.paged
import harness.__main__  # noqa: F401  (its resolvers)
from harness.naming.identity import digest, identity
from harness.naming.labels import PUBLISHED, label, names
from harness.tasks.claims import composed

SYSTEMS = {"orca_max": "Orca (Max)", "orca_pow2": "Orca (Pow2)", "orca_oracle": "Orca (Oracle)", "vllm": "vLLM",
           "vattention": "vAttention", "faster_transformer": "FasterTransformer", "ideal": "Ideal"}  # fmt: skip


class Paged(allocators.paged.Paged):
    """Somebody's own, called as ours is."""


class Handing(allocators.paged.Paged):
    """One that hands on what it does not name."""

    def __init__(self, capacity: int, max_model_len: int, mine: int = 3, **more: Any) -> None:
        super().__init__(capacity, max_model_len, **more)
        self.mine = mine


@pytest.fixture(scope="module")
def vllm() -> DictConfig:
    return composed(["system=vllm"])


def changed(cfg: DictConfig, keys: dict[str, Any]) -> DictConfig:
    other = cfg.copy()
    for key, value in keys.items():
        OmegaConf.update(other, key, value, force_add=True)
    return other


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_published_system_has_its_name(name: str) -> None:
    assert label(composed([f"system={name}"])) == SYSTEMS[name]


def test_every_published_system_can_be_set_up() -> None:
    assert {system.name for system in PUBLISHED} == {*SYSTEMS.values(), "vLLM v1"}
    assert label(composed(["scheduler=vllm_v1"])) == "vLLM v1"


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ({"allocator.block_size": 256}, "continuous + paged(on_demand) [block_size=256]"),
        ({"allocator.enable_prefix_caching": True}, "continuous + paged(on_demand) + prefix cache"),
        ({"scheduler.preemption": "swap"}, "continuous + paged(on_demand) [preemption=swap]"),
        (
            {"allocator.block_size": 256, "allocator.enable_prefix_caching": True, "scheduler.preemption": "swap",
             "allocator.host_slots": 4096},
            "continuous + paged(on_demand) + prefix cache [preemption=swap, block_size=256]",
        ),
        ({"scheduler.watermark": 0.2}, "continuous + paged(on_demand) [watermark=0.2]"),
        ({"scheduler.policy": "shortest_first"}, "continuous shortest_first + paged(on_demand)"),
        ({"scheduler.chunked_prefill": True}, "continuous sarathi + paged(on_demand)"),
        ({"reservation._target_": "schedulers.reservation.pow2"}, "continuous + paged(pow2)"),
        ({"allocator._target_": "tests.test_labels.Paged"}, "continuous + tests.test_labels.Paged(on_demand)"),
        (
            {"allocator._target_": "tests.test_labels.Handing", "allocator.block_size": 32, "allocator.mine": 4},
            "continuous + tests.test_labels.Handing(on_demand) [block_size=32, mine=4]",
        ),
        ({"allocator._target_": "no.such.module.Paged"}, "continuous + no.such.module.Paged(on_demand)"),
        ({"scheduler._target_": "mine.continuous.Continuous"}, "mine.continuous.Continuous + paged(on_demand)"),
        ({"label": "ours"}, "ours"),
    ],
)  # fmt: skip
def test_a_set_up_that_is_another_has_another_name(vllm: DictConfig, keys: dict[str, Any], name: str) -> None:
    assert label(changed(vllm, keys)) == name


@pytest.mark.parametrize("key", ["scheduler.max_num_seqs", "scheduler.max_num_batched_tokens", "kv_slots"])
def test_sizes_of_a_server_leave_it_its_name(vllm: DictConfig, key: str) -> None:
    assert label(changed(vllm, {key: 64})) == "vLLM"


def test_a_key_that_the_sweep_moves_is_no_part_of_the_name(vllm: DictConfig) -> None:
    for size in (16, 256):
        cfg = changed(vllm, {"allocator.block_size": size})
        assert label(cfg, ["allocator.block_size"]) == "continuous + paged(on_demand)"


def test_a_job_is_its_configuration_without_seed_and_repeat(vllm: DictConfig) -> None:
    same = changed(vllm, {"seed": 7, "repeat": 3, "label": "x", "baseline": "vLLM", "scheduler.seed": 7})
    vllm = changed(vllm, {"scheduler.seed": vllm.seed})
    assert names(vllm)["identity"] == digest(identity(same)) == names(same)["identity"]
    for key, value in (
        ("kv_slots", 99),
        ("allocator.block_size", 32),
        ("workload.num_requests", 5),
        ("scheduler.seed", 8),
    ):
        assert names(changed(vllm, {key: value}))["identity"] != names(vllm)["identity"], key
