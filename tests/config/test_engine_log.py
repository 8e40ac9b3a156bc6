"""`kv_slots=from_log:FILE`: the pool as large as an engine's log says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.schema.keys import KEYS
from tests.command import FAST, command

VLLM = "(EngineCore pid=7) INFO 12-11 00:06:53 [kv_cache_utils.py:1286] GPU KV cache size: {} tokens\n"
SGLANG = ("[2026-01-02 03:04:05] KV Cache is allocated. #tokens: 171008, K size: 5.22 GB, V size: 5.22 GB\n"
          "[2026-01-02 03:04:06] max_total_num_tokens=171008, chunked_prefill_size=2048\n")  # fmt: skip


@pytest.mark.parametrize(("text", "slots"), [
    ("INFO start\n" + VLLM.format("686,320") + "more\n", 686_320),
    (VLLM.format("4096") * 2, 4096),  # two ranks that agree
    (SGLANG, 171_008),
    ("\xff\n" + VLLM.format("15,728"), 15_728),
])  # fmt: skip
def test_the_size_is_read(tmp_path: Path, text: str, slots: int) -> None:
    log = tmp_path / "engine.log"
    log.write_text(text, encoding="latin-1")
    assert KEYS["kv_slots"].read(f"from_log:{log}") == slots


@pytest.mark.parametrize(("text", "said"), [
    ("INFO nothing of it\n", "GPU KV cache size: N tokens"),
    (VLLM.format("4,096") + VLLM.format("4,112"), "several sizes (4,096 in line 1, 4,112 in line 2)"),
    ("INFO # GPU blocks: 7,448, # CPU blocks: 2048\n", "counts blocks (7,448)"),
    (VLLM.format("0"), "GPU KV cache size: N tokens"),
    ("", "GPU KV cache size: N tokens"),
    (None, "there is no such file"),
])  # fmt: skip
def test_what_a_log_does_not_tell_is_refused_in_one_line(tmp_path: Path, text: str | None, said: str) -> None:
    log = tmp_path / "my logs, old" / "engine.log"
    log.parent.mkdir()
    if text is not None:
        log.write_text(text)
    done = command(tmp_path, *FAST, f"kv_slots=from_log:{log}" if text is not None else "kv_slots=from_log:no.log")
    assert (done.code, said in done.err) == (2, True), done.err
    assert len(done.err.strip().splitlines()) == 1


def test_the_run_has_that_pool_and_says_the_number(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").write_text(VLLM.format("16,384"))
    done = command(tmp_path, *FAST, "kv_slots=from_log:vllm.log", "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert yaml.safe_load((tmp_path / "run/config.yaml").read_text())["kv_slots"] == 16_384
    assert '"capacity": 16384' in (tmp_path / "run/summary.json").read_text()
