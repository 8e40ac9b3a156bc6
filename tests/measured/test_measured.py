"""`experiment=measured` with twenty made-up runs, and with the shared ones where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.errors import HarnessError
from harness.job import run_job
from harness.measured.models import SHIPPED, model_config
from harness.measured.predict import Predictor
from harness.measured.settings import read_row, settings_of
from harness.measured.task import predict_row, read_rows
from harness.operators.model import Model
from tests.config.test_keys import composed
from tests.measured.made_up import CONFIG, rows, write_tables

SHARED = Path(__file__).parents[3] / "shared/measured/aic"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = write_tables(tmp_path_factory.mktemp("measured"))
    rows().to_csv(place / "rows.csv", index=False)
    (place / "models/made").mkdir(parents=True)
    (place / "models/made/Up.json").write_text(json.dumps(CONFIG))
    return place


def test_twenty_rows_are_predicted_and_reported(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"measured.rows={folder / 'rows.csv'}", f"measured.models={folder / 'models'}", f"device.tables={folder}"]
    row = run_job(composed(["experiment=measured", *given]), tmp_path / "out", given)
    assert row["status"] == "finished", row["error"]
    table = pd.read_csv(tmp_path / "out/predictions.csv", keep_default_na=False)
    assert len(table) == 20
    assert (table["refused"] == "").all()
    assert (table["predicted_ttft_ms"].astype(float) > 0).all()
    assert (table["predicted_tpot_ms"].astype(float) > 0).all()
    assert table["assumed"].str.contains("tables of vllm 0.24.0 for 0.19.0").any()
    assert "20 of 20 rows predicted" in capsys.readouterr().out
    for name in ("groups.csv", "by_concurrency.csv", "REPORT.md", "figures/scatter.png", "figures/errors.png"):
        assert (tmp_path / "out" / name).is_file(), name


def test_a_row_is_refused_with_its_reason(folder: Path) -> None:
    predictor = Predictor(folder, folder / "models")
    plain = rows(1).to_dict("records")[0]
    for change, said in (({"system": "made_off"}, "no tables of made_off"),
                         ({"model_path": "made/Down"}, "no config.json"),
                         ({"pp_size": 2}, "pipeline stages"), ({"backend": ""}, "one of vllm, sglang, trtllm"),
                         ({"isl": 1023.5}, "no whole number"), ({"gemm_quant_mode": "fp8"}, "has bfloat16, not fp8"),
                         ({"tp_size": 8, "moe_tp_size": 8}, "attention of 1 heads")):  # fmt: skip
        told = predict_row(predictor, 0, plain | change)
        assert said in told["refused"]
        assert told["predicted_ttft_ms"] is None


def test_the_shortest_rows_are_predicted(folder: Path) -> None:
    """One token in, one out: a first token and nothing else."""
    plain = rows(1).to_dict("records")[0]
    told = predict_row(Predictor(folder, folder / "models"), 0, plain | {"isl": "1.0", "osl": 1})
    assert told["refused"] == ""
    assert told["predicted_ttft_ms"] > 0
    assert told["tpot_error_pct"] is None or told["tpot_error_pct"] != told["tpot_error_pct"]


def test_a_run_that_takes_more_than_the_gpu_has_is_named(folder: Path) -> None:
    plain = rows(1).to_dict("records")[0]
    told = predict_row(
        Predictor(folder, folder / "models"), 0, plain | {"silicon_ttft_ms": 0.1, "silicon_tpot_ms": 0.01}
    )
    assert told["not_as_stated"].startswith("busy")
    assert told["tpot_error_pct"] > 0


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    rows(2).drop(columns="isl").to_csv(tmp_path / "rows.csv")
    with pytest.raises(HarnessError, match="columns isl are missing"):
        read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize(("sizes", "shared"), [
    ((4, 1, 4, 1), (4, 1, 4, 1)), ((64, 1, 8, 8), (8, 1, 1, 8)), ((1, 64, 8, 8), (1, 8, 1, 8)),
    ((4, 4, 1, 16), (1, 4, 1, 4)),
    ((1, None, 2, 1), (1, 2, 2, 1)), ((8, 1, 1, 8), (8, 1, 1, 8)), ((2, 0, 0, 0), (2, 1, 2, 1)),
    ((1, 8, 1, 8), (1, 8, 1, 8)),
])  # fmt: skip
def test_degrees_that_no_node_has_are_read_as_devices(sizes: tuple[int, ...], shared: tuple[int, ...]) -> None:
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    row = read_row(0, rows(1).to_dict("records")[0] | dict(zip(names, sizes, strict=True)))
    told = row.parallel
    assert (told.tensor, told.data, told.expert_tensor, told.expert) == shared


def test_settings_are_told_by_the_table_and_say_by_whom() -> None:
    plain = rows(1).to_dict("records")[0]
    llama = {"model_path": "meta-llama/Llama-3.1-70B", "backend": "trtllm", "isl": 1024, "osl": 1024, "tp_size": 4}
    told = settings_of(read_row(0, plain | llama))
    assert (told.budget, told.wait_steps, told.kv, told.shortest) == (16384, 20, "fp8", 0.8)
    assert any("batch_wait_timeout_iters" in source for source in told.sources)
    assert settings_of(read_row(0, plain | llama | {"tp_size": 8, "moe_tp_size": 8})).wait_steps == 0
    old = settings_of(read_row(0, plain | {"backend_version": "0.12.0", "origin": "gap_analysis"}))
    assert old.ahead == 1
    assert old.shortest == 1.0


@pytest.mark.parametrize("path", sorted(SHIPPED.rglob("*.json")), ids=lambda path: path.stem)
def test_every_shipped_model_names_its_source_and_has_operators(path: Path) -> None:
    config = model_config(str(path.relative_to(SHIPPED).with_suffix("")))
    assert str(config["_source"]).startswith("https://huggingface.co/")
    assert Model.of(config).layers == config["num_hidden_layers"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/measured/aic is not there")
@pytest.mark.parametrize(("model", "gpu", "engine", "tpot", "ttft"), [
    ("meta-llama/Llama-3.1-70B", "b200_sxm", "vllm", 8, 20), ("openai/gpt-oss-120b", "h200_sxm", "vllm", 10, 25),
])  # fmt: skip
def test_rows_that_no_constant_was_fitted_to(model: str, gpu: str, engine: str, tpot: float, ttft: float) -> None:
    table = read_rows(SHARED / "silicon_rows.csv.gz")
    table = table[table["precision"] == "fp8"] if gpu == "b200_sxm" else table  # fp4 told a constant
    some = table[(table["model_path"] == model) & (table["system"] == gpu) & (table["backend"] == engine)].iloc[::7]
    told = pd.DataFrame([predict_row(Predictor(SHARED), int(str(n)), row.to_dict()) for n, row in some.iterrows()])
    assert (told["refused"] == "").all()
    assert told["tpot_error_pct"].abs().median() < tpot
    assert told["ttft_error_pct"].abs().median() < ttft
