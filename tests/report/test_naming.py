"""Rows of a comparison: one for each configuration, with a name that no other has; repeats, and only those, merge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import DictConfig, OmegaConf

import harness.__main__  # noqa: F401  (its resolvers)
from harness.errors import HarnessError
from harness.naming.labels import names
from harness.report.comparison import comparison, find_baseline, read_jobs
from harness.report.repeats import aggregate
from harness.report.table import beside_fig_2
from harness.tasks.claims import composed

Values = dict[str, Any]


@cache
def base(system: str) -> DictConfig:
    return composed([f"system={system}", "+lanes=4"])


def groups(folder: Path, *jobs: Values, system: str | Sequence[str] = "vllm", asked: str = "") -> pd.DataFrame:
    """The rows of a sweep over these jobs, which are configured and do not run.

    Args:
        jobs: what each of them sets in the configuration of its system.
        asked: a key that the sweep moves, so that it stands on the command line.
    """
    systems = [system] * len(jobs) if isinstance(system, str) else system
    for number, (name, values) in enumerate(zip(systems, jobs, strict=True)):
        cfg = base(name).copy()
        for key, value in values.items():
            OmegaConf.update(cfg, key, value, force_add=True)
        row = {**names(cfg), "status": "finished", "error": None, "repeat": cfg.repeat, "seed": cfg.seed,
               "overrides": [f"system={name}", *([f"{asked}={values[asked]}"] if asked else [])],
               "workload": "sharegpt", "finished": 5, "output_throughput": 100.0 + number, "e2e_mean_ms": 10.0,
               "saturated_kv_used_pct": 90.0, "capacity": 15728}  # fmt: skip
        path = folder / str(number)
        path.mkdir(parents=True)
        (path / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
        (path / "summary.json").write_text(json.dumps(row))
    return aggregate(comparison(read_jobs(folder)))


def test_seeds_and_repeats_are_one_row(tmp_path: Path) -> None:
    found = groups(tmp_path, *({"seed": at, "repeat": at} for at in range(3)), asked="repeat")
    assert found["label"].tolist() == ["vLLM"]
    assert found["repeats"].tolist() == [3]
    assert found["output_throughput"].tolist() == [101]


def test_two_systems_of_the_same_parts_are_two_rows(tmp_path: Path) -> None:
    found = groups(tmp_path, {}, {}, system=("continuous+contiguous+max_model_len", "continuous_lanes"))
    assert found["label"].tolist() == [f"continuous + contiguous(max_model_len) [max_num_seqs={n}]" for n in (256, 4)]
    assert found["output_throughput"].tolist() == [100, 101]


def test_a_file_of_ones_own_is_another_row(tmp_path: Path) -> None:
    found = groups(tmp_path, {}, {"allocator.block_size": 256})
    assert found["label"].tolist() == ["vLLM", "continuous + paged(on_demand) [block_size=256]"]
    (said,) = beside_fig_2(found)
    assert said.count("(paper ") == 1


def test_a_class_of_ones_own_called_paged_is_not_beside_the_paper(tmp_path: Path) -> None:
    found = groups(tmp_path, {"allocator._target_": "tests.test_labels.Paged"})
    assert found["label"].tolist() == ["continuous + tests.test_labels.Paged(on_demand)"]
    assert beside_fig_2(found) == []


def test_sizes_that_no_name_tells_stand_behind_it(tmp_path: Path) -> None:
    assert groups(tmp_path, {}, {"kv_slots": 999})["label"].tolist() == ["vLLM [kv_slots=15728]", "vLLM [kv_slots=999]"]


def test_labels_of_the_users_that_collide_are_told_apart(tmp_path: Path) -> None:
    found = groups(tmp_path, *({"label": "mine", "allocator.block_size": size} for size in (16, 32)))
    assert found["label"].tolist() == ["mine [block_size=16]", "mine [block_size=32]"]
    assert found["repeats"].tolist() == [1, 1]


def test_labels_of_the_users_that_differ_stay(tmp_path: Path) -> None:
    found = groups(tmp_path, *({"label": name, "allocator.block_size": size} for name, size in (("a", 16), ("b", 32))))
    assert found["label"].tolist() == ["a", "b"]


def test_classes_with_one_label_are_told_apart_by_class(tmp_path: Path) -> None:
    targets = ("allocators.paged.Paged", "tests.test_labels.Paged")
    found = groups(tmp_path, *({"label": "x", "allocator._target_": target} for target in targets))
    assert found["label"].tolist() == ["x [allocator=paged]", "x [allocator=tests.test_labels.Paged]"]


def test_what_a_sweep_moves_stands_beside_the_name_not_in_it(tmp_path: Path) -> None:
    rates = groups(tmp_path / "rates", *({"workload.rate": rate} for rate in (1, 2)), asked="workload.rate")
    assert rates["label"].tolist() == ["vLLM · rate 1", "vLLM · rate 2"]
    key = "allocator.block_size"
    sizes = groups(tmp_path / "sizes", *({key: size} for size in (16, 256)), asked=key)
    assert sizes["label"].tolist() == [f"continuous + paged(on_demand) · block_size {size}" for size in (16, 256)]


def test_a_baseline_that_could_be_several_rows_is_an_error(tmp_path: Path) -> None:
    groups(tmp_path, *({"label": "mine", "allocator.block_size": size} for size in (16, 32)))
    jobs = read_jobs(tmp_path)
    with pytest.raises(HarnessError, match=r"several systems are called 'mine': mine \[block_size=16\]; mine \[.*32\]"):
        comparison(jobs, "mine")
    assert find_baseline(jobs, "mine [block_size=32]") == "mine [block_size=32]"
    assert comparison(jobs, "mine [block_size=32]")["output_throughput_x"].tolist() == pytest.approx([100 / 101, 1])
