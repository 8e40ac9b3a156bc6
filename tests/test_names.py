"""What models and workloads are called: after what they are, whatever group they were set from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import harness.__main__  # noqa: F401  (its resolvers)
from harness.groups import options
from harness.naming.names import model_name, workload_name
from harness.tasks.claims import EXPERIMENTS, composed

SHAPE: dict[str, Any] = {"model_type": "llama", "hidden_size": 64}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name in ("tiny.json", "my-llama-8b.json", "hub/opt-125m/config.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**SHAPE, "model_type": "opt" if "opt" in name else "llama"}))
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        ([], "opt_mini"),
        (["model=llama_8b"], "llama_8b"),
        (["model.config={files}/tiny.json"], "tiny (llama)"),
        (["model=llama_8b", "model.config={files}/my-llama-8b.json"], "my-llama-8b"),
        (["model.config={files}/hub/opt-125m/config.json"], "opt-125m"),
        (["model.path={files}/hub/opt-125m"], "opt-125m"),
        (["model.path=facebook/opt-125m"], "facebook/opt-125m"),
        (["model.config={files}/missing.json"], "missing"),
        (["model.path={files}/hub/opt-125m", "model.name=mine"], "mine (opt-125m)"),
        (["model.path={files}/hub/opt-125m", "model.name=opt 125M"], "opt 125M"),
        (["model.config.hidden_size=512"], "opt_mini [hidden_size=512]"),
        (
            ["model.config.num_hidden_layers=3", "+model.config.dropout=0.5"],
            "opt_mini [num_hidden_layers=3, dropout=0.5]",
        ),
        (["model.init_std=0.2"], "opt_mini"),
        (["model.config.hidden_size=512", "model.name=mine"], "mine"),
    ],
)
def test_a_model(keys: list[str], name: str, files: Path) -> None:
    assert model_name(composed([key.replace("{files}", str(files)) for key in keys]).model) == name


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (["workload=sharegpt"], "sharegpt"),
        (["workload=sharegpt", "workload.output.cap=64"], "sharegpt [output.cap=64]"),
        (["workload=alpaca", "workload.prompt={kind:fixed,value:9}"], "alpaca [prompt.kind=fixed, prompt.value=9]"),
        (["workload=sharegpt", "workload.n=4", "workload.rate=2", "workload.num_requests=9"], "sharegpt"),
        (["workload=lognormal", "workload.prompt.mean=9"], "lognormal"),
        (["workload=lognormal", "workload.prompt.kind=fixed"], "lognormal [prompt.kind=fixed]"),
        (["workload=trace", "workload.path=/data/code.2024.csv.gz"], "trace code.2024"),
        (["workload=sharegpt", "workload.path=/data/other.jsonl"], "trace other"),
        (["workload=trace", "workload.path=/data/other", "workload.name=mine"], "mine (other)"),
        (["experiment=knobs"], "chat rounds"),
        (["experiment=knobs", "workload.path=/data/other.jsonl"], "chat rounds (other)"),
        (["experiment=shared_prefix"], "wmt16_en_de"),
    ],
)
def test_a_workload(keys: list[str], name: str) -> None:
    assert workload_name(composed(keys).workload) == name


@pytest.mark.parametrize("group", ["model", "workload"])
def test_every_group_is_called_as_its_file(group: str) -> None:
    for name in options(EXPERIMENTS / group):
        cfg = composed([f"{group}={name}"])
        assert (model_name(cfg.model) if group == "model" else workload_name(cfg.workload)) == name
