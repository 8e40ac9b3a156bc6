"""What people get wrong about operator tables and measured rows: one clear line each."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.errors import HarnessError
from harness.measured.models import model_config
from harness.measured.predict import Predictor
from harness.measured.task import predict_row, read_rows
from harness.operators.compose import Rules, compose
from harness.operators.folder import Tables, engine_and_version
from harness.operators.health import print_health
from harness.operators.machines import Machine
from harness.operators.model import Model, Parallel, Precision
from tests.measured.made_up import CONFIG, rows, write_tables

GPU, PLACE = "gpus/made_up.yaml", "made_up/vllm/0.24.0"


def say(do: Callable[[], Any]) -> str:
    """The line that is said."""
    with pytest.raises(HarnessError) as caught:
        do()
    line = str(caught.value)
    assert "\n" not in line
    return line


def composed(folder: Path, gpu: str = "made_up", engine: str = "vllm", tensor: int = 1, **precision: str) -> None:
    """What `device.latency=operators` does with a folder."""
    name, version = engine_and_version(engine)
    compose(Model.of(CONFIG), Tables(folder, gpu, name, version), Parallel(tensor), Precision(**precision), Machine())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("whole"), engines=("vllm",))


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "tables")


@pytest.mark.parametrize(("given", "said"), [
    ({"engine": "vlm-0.24.0"}, "did you mean vllm?"),
    ({"engine": "vllm-0.24"}, "did you mean 0.24.0?"),
    ({"engine": "sglang-0.5.9"}, "has no tables of SGLang on made_up; it has those of vllm"),
    ({"gpu": "made_p"}, "it has made_up; did you mean made_up?"),
    ({"tensor": 3}, "heads can't be shared evenly"),
    ({"attention": "fp9"}, "attention=fp9: must be one of bfloat16"),
    ({"mlp": "fp8"}, "has bfloat16, not fp8"),
    ({"kv": "fp4"}, "kv=fp4: must be bfloat16 or fp8"),
])  # fmt: skip
def test_names_that_are_not_there(whole: Path, given: dict[str, Any], said: str) -> None:
    assert said in say(lambda: composed(whole, **given))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def without(column: str) -> Callable[[Path], None]:
    return lambda path: pd.read_parquet(path).drop(columns=column).to_parquet(path)


def changed(column: str, value: Any) -> Callable[[Path], None]:
    return lambda path: pd.read_parquet(path).assign(**{column: value}).to_parquet(path)


@pytest.mark.parametrize(("name", "spoil", "said"), [
    (f"{PLACE}/gemm_perf.parquet", cut, "gemm_perf.parquet can't be read as a parquet table"),
    (f"{PLACE}/gemm_perf.parquet", Path.unlink, "gemm_perf of vllm 0.24.0 on made_up has none"),
    (f"{PLACE}/context_attention_perf.parquet", Path.unlink, "there is no context_attention_perf of vllm"),
    (f"{PLACE}/gemm_perf.parquet", without("latency"), "gemm_perf.parquet has no column `latency`"),
    (f"{PLACE}/gemm_perf.parquet", without("n"), "gemm_perf.parquet has no column n"),
    (f"{PLACE}/generation_attention_perf.parquet", without("step"), "generation_attention_perf.parquet has no column"),
    (f"{PLACE}/gemm_perf.parquet", changed("latency", float("nan")), "is no time above 0"),
    (f"{PLACE}/gemm_perf.parquet", changed("latency", -1.0), "is no time above 0"),
    (f"{PLACE}/gemm_perf.parquet", lambda path: path.write_text("m,n,k\n"), "can't be read as a parquet table"),
    (GPU, lambda path: path.write_text("gpu: [\n"), "made_up.yaml can't be read"),
    (GPU, lambda path: path.write_text(""), "made_up.yaml lacks"),
    (GPU, lambda path: path.write_text("gpu: {mem_bw: 1}\n"), "made_up.yaml lacks"),
])  # fmt: skip
def test_files_that_are_spoiled(folder: Path, name: str, spoil: Callable[[Path], None], said: str) -> None:
    spoil(folder / name)
    assert said in say(lambda: composed(folder))


@pytest.mark.parametrize(("write", "said"), [
    (lambda path: None, "can't be read"),
    (lambda path: path.write_text(""), "can't be read"),
    (lambda path: path.write_bytes(gzip.compress(rows(20).to_csv().encode())[:400]), "can't be read"),
    (lambda path: path.write_text("model,isl\n"), "are missing"),
])  # fmt: skip
def test_rows_that_are_no_table(tmp_path: Path, write: Callable[[Path], None], said: str) -> None:
    path = tmp_path / "rows.csv.gz" if "gz" in said else tmp_path / "rows.csv"
    write(path)
    assert said in say(lambda: read_rows(path))


def models(folder: Path) -> Path:
    (folder / "made").mkdir()
    (folder / "made/Up.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize(("change", "said"), [
    ({"isl": "many"}, "isl=many is no whole number"), ({"batch_size": 0}, "batch_size=0 is no size"),
    ({"osl": float("nan")}, "osl= is no whole number"), ({"backend": "vlm"}, "did you mean vllm?"),
    ({"silicon_ttft_ms": "fast"}, "silicon_ttft_ms=fast is no number"),
])  # fmt: skip
def test_rows_that_can_be_no_run(whole: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    told = predict_row(Predictor(whole, models(tmp_path)), 7, rows(1).to_dict("records")[0] | change)
    assert said in told["refused"]
    assert "\n" not in told["refused"]


def test_the_rest(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "smoth: the rules are smooth" in say(lambda: Rules.without(["smoth"]))
    assert "there is no such folder" in say(lambda: Tables(tmp_path / "nowhere", "made_up", "vllm"))
    assert "has no operator tables" in say(lambda: print_health(str(tmp_path)))
    (tmp_path / "made").mkdir()
    (tmp_path / "made/Up.json").write_text("{")
    assert "Up.json is no JSON" in say(lambda: model_config("made/Up", tmp_path))
    (tmp_path / "made/Up.json").write_text("[]")
    model_config.cache_clear()
    assert "Up.json must be a JSON object" in say(lambda: model_config("made/Up", tmp_path))


def test_health_goes_on_behind_a_table_that_cant_be_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut(folder / PLACE / "gemm_perf.parquet")
    print_health(str(folder))
    printed = capsys.readouterr().out
    assert "can't be read" in printed
    assert "context_attention_perf" in printed
