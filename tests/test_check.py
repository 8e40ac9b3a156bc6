"""`python -m harness check`, and the check that runs by itself before a model that is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf

from harness.__main__ import EXPERIMENTS
from harness.errors import HarnessError
from harness.runner import auto_check as auto_check_module
from harness.runner import device as device_module
from harness.runner import logits_check
from harness.runner.device import load
from harness.runner.families import families
from harness.tasks import check
from tests.runner.test_logits_check import without

FAST = "device.kernels=torch"


def written(folder: Path, name: str, **changes: Any) -> str:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(families()[name] | changes))
    return f"model.config={path}"


def test_an_equal_model_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main([written(tmp_path, "gemma3"), FAST], EXPERIMENTS) == 0
    said = capsys.readouterr().out
    assert "gemma3_text (Gemma3ForCausalLM, torch): equal: " in said
    assert "<= 1.0e-05" in said


def test_a_different_model_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                       capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.setattr(logits_check, "probe", without(sinks=None))
    assert check.main([written(tmp_path, "gpt_oss"), FAST], EXPERIMENTS) == 1
    assert "different: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["model.config={model_type: rwkv, hidden_size: 64}"], "rwkv: .*takes no KV cache"),
        (["model.config={model_type: phi3, hidden_size: 64}"], "pad_token_id = 32000 lies outside"),
        (["model.config=nowhere.json"], "nowhere.json"),
        (["lama"], "no tested architecture 'lama'; did you mean llama"),
        (["device=simulated"], "has none"),
    ],
)
def test_what_is_refused_says_why(words: list[str], match: str) -> None:
    with pytest.raises(HarnessError, match=match) as caught:
        check.main(words, EXPERIMENTS)
    assert "\n" not in str(caught.value)


def test_a_table_of_architectures_is_shown_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["llama", "gpt_neo", FAST, "--out", str(tmp_path)], EXPERIMENTS) == 0
    table = pd.read_csv(tmp_path / "models.csv")
    assert table["verdict"].tolist() == ["equal", "refused"]
    assert 0 < table["difference"][0] < 1e-5
    assert "gpt_neo" in table["reason"][1]
    assert "| llama | torch | equal | " in (tmp_path / "README.md").read_text()
    assert "refused" in capsys.readouterr().out


# ---- by itself ------------------------------------------------------------------------------------------------------


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The verdicts given, in a world where no architecture is tested and nothing was found before."""
    given: list[Any] = []

    def compare_logits(*arguments: Any) -> Any:
        given.append(logits_check.compare_logits(*arguments))
        return given[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(auto_check_module, "_tested", lambda model: False)
    monkeypatch.setattr(auto_check_module, "compare_logits", compare_logits)
    return given


def opened(check: Any = "auto", **changes: Any) -> dict[str, Any]:
    """What `environment.json` says of the check of a model."""
    device_module._LOADED.clear()
    model = {"path": None, "config": families()["gpt2"] | changes, "init_std": 0.12}
    settings = {"kind": "cpu", "dtype": "float32", "threads": 1, "kernels": "torch", "flatten": False, "check": check}
    pool = {"kv_slots": 64, "kv_bytes": None, "gpu_memory_utilization": None, "max_model_len": 64}
    wanted = {"model": model, "device": settings, "seed": 0, **pool}
    return load(OmegaConf.create(wanted)).facts["check"]


def test_an_architecture_that_is_not_tested_is_checked_once(judged: list[Any]) -> None:
    first, again = opened(), opened()
    assert len(judged) == 1
    assert (first["verdict"], first["cached"], again["cached"]) == ("equal", False, True)
    assert again["difference"] == first["difference"] == judged[0].difference
    opened(num_hidden_layers=3)
    assert len(judged) == 2
    opened(True)
    assert len(judged) == 3


def test_a_home_that_cannot_be_written_costs_only_time(judged: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    opened()
    assert opened()["cached"] is False
    assert len(judged) == 2


def test_it_can_be_switched_off_and_is_left_out_where_it_would_be_long(
    judged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(False) == {"verdict": "not made", "reason": "device.check=false"}
    monkeypatch.setattr(auto_check_module, "LARGEST", 100_000)
    assert "billion parameters" in opened()["reason"]
    assert not judged
    with pytest.raises(HarnessError, match=r"device\.check=perhaps"):
        opened("perhaps")


def test_tested_architectures_are_not_checked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "among the architectures tested" in opened()["reason"]
    monkeypatch.setattr(auto_check_module, "TESTED_WITH", "5.1")
    assert opened()["verdict"] == "equal"


def test_a_model_that_would_say_something_else_does_not_run(judged: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logits_check, "probe", without(window=2))
    with pytest.raises(HarnessError, match=r"gpt2: the runner says something else .*device\.check=false runs it"):
        opened()
    assert opened(False)["verdict"] == "not made"
