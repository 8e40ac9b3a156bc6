"""What a user types: mistakes are told before any work, with exit code 2, and leave nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command import FAST, Done, command


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time of a report."""
    import harness.report.page

    monkeypatch.setattr(harness.report, "draw_all", lambda *args: [])
    monkeypatch.setattr(harness.report.page, "write_page", lambda *args, **named: None)


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]


def ran(folder: Path, *arguments: str) -> dict[str, Any]:
    done = command(folder, *arguments, "hydra.run.dir=run")
    assert done.code == 0, done.err
    return summary(folder / "run")


def refused(folder: Path, *arguments: str) -> Done:
    """It ends with exit code 2, no traceback, and without a trace in the folder."""
    done = command(folder, *arguments)
    assert done.code == 2, (done.out, done.err)
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    return done


@pytest.mark.parametrize(("arguments", "key"), [
    (["gpu_memory_utilization=true"], "gpu_memory_utilization"),
    (["price_per_hour=-3"], "price_per_hour"),
    (["price_per_hour=abc"], "price_per_hour"),
    (["slo_ms.ttft=-1"], "slo_ms.ttft"),
    (["slo_ms.ttft=2s"], "slo_ms.ttft"),
    (["seed=18446744073709551616"], "seed"),
    (["kv_slots=1000000000000"], "kv_slots"),
    (["scheduler.watermark=abc"], "scheduler.watermark"),
    (["device.dtype=banana"], "device.dtype"),
    (["device.kind=cpu", "model.config.num_attention_heads=0"], "model.config.num_attention_heads"),
    (["device.kind=cpu", "device.threads=-4"], "device.threads"),
    (["allocator=null"], "allocator"),
    (["scheduler=3"], "scheduler"),
])  # fmt: skip
def test_a_mistake_is_told_before_anything_is_made(tmp_path: Path, arguments: list[str], key: str) -> None:
    assert f"error: {key}=" in refused(tmp_path, *FAST, *arguments).err


@pytest.mark.parametrize(("arguments", "told"), [
    (["scheduler.watermark=0,0.1,abc", "seed=0,1"],
     "job 4 (scheduler.watermark=abc seed=0) and 1 more: scheduler.watermark=abc"),
    (["allocator.block_size=16,8,true"], "job 2 (allocator.block_size=True): allocator.block_size=True"),
    (["scheduler=static,continous"], "job 1 (scheduler=continous): there is no scheduler 'continous'; did you mean"),
    (["allocator=paged,contiguous", "allocator.block_size=16"],
     "job 1 (allocator=contiguous): the allocator that is chosen has no key 'block_size'"),
    (["allocator._target_=allocators.paged.Paged,no_such.Thing"], "job 1 (allocator._target_=no_such.Thing)"),
    (["workload.arrival=burst,poisson"], "job 1 (workload.arrival=poisson): workload.rate is not set"),
    (["price_per_hour=-1", "seed=0,1"], "error: price_per_hour=-1"),
    (["scheduler=static,_base"], "error: scheduler=_base: there is no scheduler '_base'"),
    (["system=vllm,static_paged"],
     "job 1 (system=static_paged): there is no system 'static_paged' any more; it is its parts: system=static+paged+o"),
    (["system=static+pagd,vllm"], "system=static+pagd: there is no 'pagd'; did you mean paged"),
    (["system=static+ideal,vllm"], "static and ideal are both names of one group, scheduler"),
])  # fmt: skip
def test_a_mistake_in_any_job_of_a_sweep_is_told_before_the_first(tmp_path: Path, arguments: list[str],
                                                                 told: str) -> None:  # fmt: skip
    assert told in refused(tmp_path, "-m", *FAST, *arguments).err


def test_what_only_a_constructor_can_judge_fails_its_job_alone(tmp_path: Path) -> None:
    done = command(tmp_path, "-m", *FAST, "allocator.block_size=16,3", "hydra.sweep.dir=sweep")
    assert done.code == 1
    assert [summary(tmp_path / "sweep" / job)["status"] for job in "01"] == ["finished", "failed"]


def test_off_is_off(tmp_path: Path) -> None:
    trace = ["workload=trace", "workload.path=${repository:}/experiments/data/chat_rounds.jsonl", "workload.limit=40"]
    row = ran(tmp_path, FAST[0], *trace, "allocator.enable_prefix_caching=off")
    assert row["prefix_hit_pct"] is None
    assert "enable_prefix_caching: false" in (tmp_path / "run/config.yaml").read_text()


def test_the_largest_seed_is_reported(tmp_path: Path) -> None:
    done = command(tmp_path, "-m", *FAST, "seed=0,18446744073709551615", "hydra.sweep.dir=sweep")
    assert done.code == 0, done.err
    assert "18446744073709551615" in (tmp_path / "sweep/comparison.csv").read_text()


def test_no_system_is_the_default_and_may_be_swept(tmp_path: Path) -> None:
    assert ran(tmp_path, *FAST, "system=null")["system"] == "vLLM"
    done = command(tmp_path, "-m", *FAST, "system=null,orca_max", "hydra.sweep.dir=sweep")
    assert done.code == 0, done.err
    assert [summary(tmp_path / "sweep" / job)["system"] for job in "01"] == ["vLLM", "Orca (Max)"]
    done = command(tmp_path, "experiment=paged_vs_static", "system=null", *FAST, "hydra.sweep.dir=other")
    assert done.code == 0, done.err
    assert [path.parent.name for path in (tmp_path / "other").glob("*/summary.json")] == ["0"]


@pytest.mark.parametrize(("dtype", "slots"), [("auto", 3906), ("bfloat16", 3906), ("float32", 1953)])
def test_a_simulated_pool_in_bytes_follows_the_dtype(tmp_path: Path, dtype: str, slots: int) -> None:
    row = ran(tmp_path, *FAST, "kv_bytes=8e6", "max_model_len=256", f"device.dtype={dtype}")
    assert row["capacity"] == slots


def test_a_model_or_a_pool_that_memory_cannot_hold_is_refused_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.runner import device

    monkeypatch.setattr(device, "free_bytes", lambda: 2 * 10**9)
    for arguments, told in (
        (["model=llama_8b"], "the weights of model llama_8b take 32.1 GB and a KV pool of 15,728 slots 4.1 GB, but "
                             "only 2.0 GB"),
        (["kv_slots=1000000000"], "a KV pool of 1,000,000,000 slots 4,096.0 GB"),
        (["kv_bytes=3e9"], "a KV pool of 732,421 slots 3.0 GB"),
    ):  # fmt: skip
        done = command(tmp_path, "device=cpu", "workload.num_requests=2", *arguments)
        assert done.code != 0
        assert told in done.err


def test_keys_without_an_effect_are_said_on_the_console_and_in_the_summary(tmp_path: Path) -> None:
    done = command(tmp_path, *FAST, "workload.cv=2", "hydra.run.dir=run")
    assert done.code == 0
    said = "workload.cv=2 has no effect: it counts only with workload.arrival=gamma"
    assert said in " ".join(done.out.split())
    assert said in summary(tmp_path / "run")["warnings"]


def test_the_configuration_is_shown_as_ever(tmp_path: Path) -> None:
    done = command(tmp_path, "--cfg", "job", "allocator.enable_prefix_caching=off")
    assert done.code == 0
    assert "enable_prefix_caching: 'off'" in done.out
