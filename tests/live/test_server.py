"""`device=server` against a server that behaves: what is sent, when, and what the tables say."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from shutil import rmtree
from typing import Any

import numpy as np
import pandas as pd
import pytest

from harness.job import run_job
from harness.live.engine import Samples
from harness.tasks.claims import composed
from harness.workload import build_workload
from tests.command import command
from tests.live.server import FakeServer, http_error

BASE = ("device=server", "workload=fixed", "workload.prompt.value=12", "workload.output.value=8")


def run(folder: Path, server: FakeServer, *more: str) -> dict[str, Any]:
    """A job without its report."""
    overrides = [*BASE, f"server.url={server.url}", *more]
    row = run_job(composed(overrides), folder / "out", overrides)
    assert row["status"] == "finished", row["error"]
    return row


def test_what_is_sent_and_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    with FakeServer() as server:
        done = command(tmp_path, *BASE, f"server.url={server.url}/v1", "hydra.run.dir=out",
                       "workload.num_requests=10", "workload.rate=100",
                       "server.api_key_env=MY_KEY", "server.extra_body={top_k: 3}")  # fmt: skip
    assert done.code == 0, done.err
    assert len(server.bodies) == 11
    sent = server.bodies[1]
    assert {key: sent[key] for key in ("model", "max_tokens", "ignore_eos", "stream", "temperature", "top_k")} == {
        "model": "tiny", "max_tokens": 8, "ignore_eos": True, "stream": True, "temperature": 0.0, "top_k": 3,
    }  # fmt: skip
    assert len(sent["prompt"]) == 12
    assert all(isinstance(token, int) and 100 <= token < 2000 for token in sent["prompt"])
    assert server.bodies[0]["prompt"] not in [body["prompt"] for body in server.bodies[1:]]
    assert server.headers[1]["Authorization"] == "Bearer sk-very-secret"
    texts = [path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not any(b"sk-very-secret" in text for text in texts)
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    assert (table["status"] == "finished").all()
    assert (table["output_tokens"] == 8).all()
    assert table["lateness_s"].between(0, 0.5).all()
    assert table[["queueing_ms", "first_scheduled_s", "preemptions", "recomputed_tokens"]].isna().all(axis=None)
    assert np.allclose(table["ttft_ms"], (table["first_token_s"] - table["arrival_s"]) * 1e3)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["device"] == f"vLLM 0.32.0 at {server.url}"
    assert summary["preemptions"] is None
    assert summary["kv_in_use_pct"] is None
    assert (tmp_path / "out" / "report.html").exists()
    pieces = pd.read_parquet(tmp_path / "out" / "pieces.parquet")
    assert (pieces.groupby("request").size() == 8).all()


def test_the_benchmark_result_is_read_back_as_a_workload(tmp_path: Path) -> None:
    with FakeServer(ways={3: http_error(500)}) as server:
        run(tmp_path, server, "workload.num_requests=6", "workload.rate=100")
    result = json.loads((tmp_path / "out" / "benchmark.json").read_text())
    assert (result["completed"], result["failed"], result["num_prompts"]) == (5, 1, 6)
    assert result["total_output_tokens"] == 40
    assert result["output_throughput"] == pytest.approx(40 / result["duration"])
    assert [len(gaps) for gaps in result["itls"]] == [7, 7, 0, 7, 7, 7]
    again = build_workload({"path": str(tmp_path / "out" / "benchmark.json"), "invalid": "drop"}, 2048, 0)
    assert [(request.prompt_len, request.output_len) for request in again.requests] == [(12, 8)] * 5
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    e2e = (table["last_token_s"] - table["arrival_s"] - table["lateness_s"])[table["status"] == "finished"]
    assert result["mean_e2el_ms"] == pytest.approx(1e3 * e2e.mean())


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_closed_loop_keeps_so_many_in_flight(concurrency: int, tmp_path: Path) -> None:
    with FakeServer() as server:
        run(tmp_path, server, "workload.num_requests=9",
                       "workload.arrival=closed_loop", f"workload.concurrency={concurrency}")  # fmt: skip
    assert server.most_open == concurrency
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    starts, ends = table["arrival_s"].sort_values().to_numpy(), table["last_token_s"].sort_values().to_numpy()
    assert (starts[concurrency:] >= ends[: len(ends) - concurrency]).all()


@pytest.mark.slow
def test_a_sweep_of_rates_has_a_report_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    with FakeServer() as server:
        done = command(tmp_path, "-m", *BASE, f"server.url={server.url}", "workload.num_requests=3",
                       "workload.rate=50,100", "server.metrics=null", "hydra.sweep.dir=out")  # fmt: skip
        assert done.code == 0, done.err
        assert "warning" not in done.out + done.err
        rmtree(tmp_path / "out" / "1")
        assert command(tmp_path, "resume", "out").code == 0
    assert len(server.bodies) == 3 * (3 + 1)
    table = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert table["finished"].tolist() == [3, 3]
    assert table["ttft_p50_ms"].notna().all()


def test_keys_of_our_engine_have_no_effect_on_a_server(tmp_path: Path) -> None:
    with FakeServer() as server:
        row = run(tmp_path, server, "workload.num_requests=2", "kv_slots=1000", "scheduler.max_num_seqs=8")
    assert "kv_slots=1000 and scheduler.max_num_seqs=8 have no effect: the server has its own" in row["warnings"]
    assert (row["allocator"], row["scheduler"]) == ("", "")


def test_connections_are_bounded_and_waiting_for_one_is_lateness(tmp_path: Path) -> None:
    with FakeServer(step_s=0.01) as server:
        summary = run(tmp_path, server, "workload.num_requests=8", "workload.arrival=burst",
                       "server.max_connections=2")  # fmt: skip
    assert server.most_open == 2
    assert summary["lateness_max_s"] > 0.15
    assert any("server.max_connections=2 held them back" in text for text in summary["warnings"])


def test_several_answers_to_a_prompt(tmp_path: Path) -> None:
    with FakeServer() as server:
        summary = run(tmp_path, server, "workload.num_requests=3", "workload.rate=100",
                       "workload.n=3")  # fmt: skip
    assert server.bodies[1]["n"] == 3
    assert server.bodies[1]["temperature"] == 1.0
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    assert (table["output_tokens"] == 24).all()
    assert summary["itl_mean_ms"] == pytest.approx(table["tpot_ms"].mean(), rel=0.05)


def test_prefixes_are_the_same_tokens(tmp_path: Path) -> None:
    with FakeServer() as server:
        run(tmp_path, server, "workload.num_requests=3", "workload.rate=100",
                       "workload.shared_prefix=6")  # fmt: skip
    prompts = [body["prompt"] for body in server.bodies[1:]]
    assert len({tuple(prompt[:6]) for prompt in prompts}) == 1
    assert len({tuple(prompt[6:]) for prompt in prompts}) == 3
    assert {len(prompt) for prompt in prompts} == {18}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE in which some words are a token with a blank before them, and more where they begin."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=True), decoders.ByteLevel()
    words = [first + second + third for first in "bdfgklm" for second in "aeiou" for third in "nrst"]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    made.train_from_iterator([" ".join(words)] * 3, trainer)
    path = tmp_path_factory.mktemp("tokenizer")
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")
    fast.chat_template = "<s>{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    fast.save_pretrained(path)
    return path


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_text_has_exactly_as_many_tokens(api: str, tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    with FakeServer() as server:
        run(tmp_path, server, "workload.num_requests=4", "workload.rate=100",
                       "workload.prompt.value=40", f"server.tokenizer={tokenizer}", f"server.api={api}")  # fmt: skip
    tool = AutoTokenizer.from_pretrained(tokenizer)
    for body in server.bodies:
        if api == "chat":
            text = tool.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False)
            assert len(tool(text, add_special_tokens=False).input_ids) == 40
        else:
            assert len(tool(body["prompt"]).input_ids) == 40
    assert pd.read_csv(tmp_path / "out" / "requests.csv")["output_tokens"].tolist() == [8] * 4


def vllm_page(seen: int) -> str:
    labels = '{engine="0",model_name="tiny"}'
    return (
        '# HELP vllm:num_requests_running x\nvllm:cache_config_info{block_size="16",enable_prefix_caching="True",'
        'num_gpu_blocks="100"} 1.0\n'
        f"vllm:num_requests_running{labels} {min(seen, 2)}.0\nvllm:num_requests_waiting{labels} 1.0\n"
        f"vllm:kv_cache_usage_perc{labels} 0.25\nvllm:num_preemptions_total{labels} {10 + seen}.0\n"
        f"vllm:prefix_cache_queries_total{labels} {100 * seen}.0\nvllm:prefix_cache_hits_total{labels} {20 * seen}.0\n"
    )


def test_the_engine_says_what_only_it_knows(tmp_path: Path) -> None:
    with FakeServer(metrics=vllm_page, step_s=0.01) as server:
        summary = run(tmp_path, server, "workload.num_requests=10", "workload.rate=50",
                       "server.metrics_s=0.1")  # fmt: skip
    assert summary["kv_in_use_pct"] == 25
    assert summary["capacity"] == 1600
    assert summary["preemptions"] == 10
    assert summary["prefix_hit_pct"] == 20
    table = pd.read_csv(tmp_path / "out" / "engine.csv")
    assert len(table) >= 3
    assert table["preemptions"].iloc[0] == 0
    assert table[["steps", "output_tokens"]].isna().all(axis=None)


def test_the_names_of_other_engines() -> None:
    told = (("num_running_reqs", "3.0"), ("num_queue_reqs", "2.0"), ("token_usage", "0.28"),
            ("prompt_tokens_total", "8.1e+06"))  # fmt: skip
    sglang = "\n".join(f'sglang:{name}{{model_name="m",tp_rank="0"}} {value}' for name, value in told)
    row = Samples(sglang).row()
    assert (row["running"], row["waiting"], row["prompt_tokens"]) == (3, 2, 8.1e6)
    assert row["kv_in_use_pct"] == pytest.approx(28)
    assert row["preemptions"] is None
    row = Samples("llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n").row()
    assert (row["running"], row["waiting"], row["kv_in_use_pct"]) == (1, 4, None)


def test_ctrl_c_keeps_what_there_is(tmp_path: Path) -> None:
    with FakeServer(step_s=0.05) as server:

        def interrupt() -> None:
            while server.over < 4:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        done = command(
            tmp_path,
            *BASE,
            "hydra.run.dir=out",
            f"server.url={server.url}",
            "workload.num_requests=100",
            "workload.rate=10",
        )
    assert done.code == 130
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(table) == 100
    assert summary["status"] == "interrupted"
    assert summary["finished"] >= 1
    assert summary["e2e_p50_ms"] > 0
    assert (table.loc[table["status"] == "unfinished", "reason"].str.contains("stopped")).all()


@pytest.mark.parametrize(("keys", "said"), [
    (["server.url=http://user:pw@localhost:1"], "holds a user or a password"),
    (["server.url=localhost:1"], "must be the server's address"),
    ([], "server.url is null"),
    (["server.url=http://localhost:1", "clock=virtual"], "clock must be auto, wall"),
    (["server.url=http://localhost:1", "server.api=chatt"], "did you mean chat?"),
])  # fmt: skip
def test_mistakes_are_told_before_anything_is_sent(keys: list[str], said: str, tmp_path: Path) -> None:
    done = command(tmp_path, "device=server", *keys)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(("keys", "said"), [
    (["server.model=tinny"], "did you mean tiny?"),
    (["workload.n=2", "workload.use_beam_search=true"], "no beam search"),
    (["server.api=chat"], "server.tokenizer must name"),
])  # fmt: skip
def test_what_can_not_be_asked_is_refused(keys: list[str], said: str, tmp_path: Path) -> None:
    with FakeServer() as server:
        done = command(tmp_path, *BASE, "hydra.run.dir=out", f"server.url={server.url}", *keys)
    assert done.code == 1
    assert said in done.err
    assert not server.bodies


@pytest.mark.parametrize(("keys", "said"), [
    ([], "TGI takes no token ids: set server.tokenizer"),
    (["server.tokenizer={tokenizer}"], "TGI has no ignore_eos"),
    (["server.tokenizer={tokenizer}", "server.ignore_eos=false", "workload.n=2"], "TGI gives one answer to a request"),
])  # fmt: skip
def test_what_an_engine_would_do_otherwise_is_refused_by_its_name(keys: list[str], said: str, tokenizer: Path,
                                                                  tmp_path: Path) -> None:  # fmt: skip
    with FakeServer(version="", pages={"/info": {"version": "3.3.0", "model_id": "tiny"}}) as server:
        done = command(tmp_path, *BASE, f"server.url={server.url}", *(key.format(tokenizer=tokenizer) for key in keys))
    assert done.code == 1
    assert said in done.err
    assert not server.bodies


def test_an_answer_may_end_by_itself_where_it_is_let(tokenizer: Path, tmp_path: Path) -> None:
    with FakeServer(version="", pages={"/info": {"version": "3.3.0"}}) as server:
        row = run(tmp_path, server, "workload.num_requests=2", f"server.tokenizer={tokenizer}",
                  "server.ignore_eos=false", "workload.max_tokens=fixed:30")  # fmt: skip
    assert row["device"].startswith("TGI 3.3.0 at ")
    assert "ignore_eos" not in server.bodies[1]
    assert server.bodies[1]["max_tokens"] == 30
    table = pd.read_csv(tmp_path / "out" / "requests.csv")
    assert table["output_tokens"].tolist() == [30, 30]
    assert table["reason"].isna().all()


def test_a_refused_warm_up_says_what_to_try(tmp_path: Path) -> None:
    with FakeServer(always=http_error(400, "unknown field ignore_eos")) as server:
        done = command(tmp_path, *BASE, "hydra.run.dir=out", f"server.url={server.url}")
    assert done.code == 1
    assert "the warm-up request was not served: HTTP 400" in done.err
    assert "server.ignore_eos=false leaves that key out" in done.err
