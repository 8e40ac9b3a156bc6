"""A made-up run whose every step is reckoned by hand, in all the forms in which runs come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.validate.made_up import (
    META,
    ROWS,
    SYNCHRONOUS_TTFT_MS,
    changed,
    validate,
    write,
    write_lines,
    write_profile,
    write_run,
)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "profile")


def requests(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "requests.csv").set_index("request_id")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_the_run_as_it_was_is_predicted_to_the_microsecond(tmp_path: Path, ending: str, capsys: Any) -> None:
    tables = write_profile(tmp_path / "tables", ending=f".csv{ending}")
    row = validate(tmp_path / "out", write_run(tmp_path / "run", ending=ending), tables)
    assert row["status"] == "finished", row["error"]
    assert row["variant"] == "skew off, prefix on, asynchronous"
    assert row["mean_error_pct"] < 0.001
    found = requests(tmp_path / "out")
    assert found["predicted_ttft_ms"].tolist() == pytest.approx([0.143, 0.320])
    assert found["predicted_e2e_ms"].tolist() == pytest.approx([0.256, 0.320])
    assert found.loc["a", "predicted_tpot_ms"] == pytest.approx(0.113)
    assert pd.isna(found.loc["b", "predicted_tpot_ms"])
    printed = capsys.readouterr().out
    assert "Headline: skew off, prefix on, asynchronous" in printed
    assert "meta file: resolved_config.scheduler_config.async_scheduling" in printed


def test_synchronous_is_another_prediction(tmp_path: Path, profile: Path) -> None:
    row = validate(tmp_path / "out", write_run(tmp_path), profile, "validate.async_scheduling=false")
    assert row["variant"] == "skew off, prefix on, synchronous"
    found = requests(tmp_path / "out")["predicted_ttft_ms"]
    assert found.to_dict() == pytest.approx(SYNCHRONOUS_TTFT_MS)


def test_every_variant_is_written_down(tmp_path: Path, profile: Path) -> None:
    row = validate(tmp_path / "out", write_run(tmp_path), profile)
    table = pd.read_csv(tmp_path / "out/validate.csv")
    assert table.columns.tolist() == ["variant", "headline", "metric", "statistic", "measured_ms", "predicted_ms",
                                      "error_pct"]  # fmt: skip
    assert len(table) == 4 * 15  # no skew table
    assert set(table.loc[table["headline"], "variant"]) == {row["variant"]}
    assert set(row["mean_error_pct_by_variant"]) == set(table["variant"])
    text = (tmp_path / "out/REPORT.md").read_text()
    assert all(variant in text for variant in set(table["variant"]))
    assert (tmp_path / "out/figures/validate.png").stat().st_size > 15_000


def test_a_key_wins_over_the_meta_file(tmp_path: Path, profile: Path) -> None:
    """Twice the layers: 20 + 15 + 4 (22 + 16 + 16)."""
    row = validate(tmp_path / "out", write_run(tmp_path), profile, "validate.layers=4", "validate.max_num_seqs=1")
    assert row["settings"]["max_num_seqs"] == [1, "validate.max_num_seqs"]
    assert requests(tmp_path / "out").loc["a", "predicted_ttft_ms"] == pytest.approx(0.251)


def test_without_a_meta_file_all_is_assumed_and_said(tmp_path: Path, profile: Path, capsys: Any) -> None:
    row = validate(tmp_path / "out", write_run(tmp_path, meta=None), profile, "validate.layers=2")
    assert row["status"] == "finished", row["error"]
    assert row["mean_error_pct"] < 0.001  # nothing of what is assumed binds here
    settings = row["settings"]
    assert settings["num_gpu_blocks"][0] == 2 + 3 + 1
    assert settings["max_model_len"][0] == 33
    assert all(source.startswith(("assumed", "validate.layers", "the tables")) for _, source in settings.values())
    printed = " ".join(capsys.readouterr().out.split())
    assert "meta file: none beside the run" in printed
    assert "the pool never filled: at most" in printed
    assert "its size was not recorded" in printed


def test_a_pool_that_must_have_been_smaller_is_pointed_out(tmp_path: Path, profile: Path) -> None:
    """One request after the other although there was room for both."""
    rows = [{**row, "scheduled_ts": row["queued_ts"]} for row in ROWS]
    rows[1] |= {"scheduled_ts": 5.0003, "first_token_ts": 5.0005, "last_token_ts": 5.0005, "arrival_time": 1e9,
                "queued_ts": 5.0}  # fmt: skip
    run = write_run(tmp_path, rows, changed(META, "kv_cache.num_gpu_blocks", None))
    notes = validate(tmp_path / "out", run, profile)["notes"]
    assert any("the engine had at most 1 requests under way at once, and 2 are predicted" in note for note in notes)
    known = validate(tmp_path / "known", run, profile, "validate.num_gpu_blocks=33")["notes"]
    assert not any("under way at once" in note for note in known)


def test_a_run_in_a_folder_of_its_own(tmp_path: Path, profile: Path) -> None:
    """requests.jsonl beside meta.json, as the benchmark writes them."""
    run = write_run(tmp_path / "vllm")
    (tmp_path / "vllm/run.meta.json").rename(tmp_path / "vllm/meta.json")
    run = run.rename(tmp_path / "vllm/requests.jsonl")
    row = validate(tmp_path / "out", run, profile)
    assert row["settings"]["max_num_seqs"] == [8, "meta file: engine_kwargs.max_num_seqs"]


def test_a_small_pool_preempts_and_says_so(tmp_path: Path, profile: Path, capsys: Any) -> None:
    """6 blocks of 4 for two requests that end with 5 each."""
    rows = [{**ROWS[0], "request_id": name, "input_toks": 8, "output_toks": 12, "last_token_ts": 5.1} for name in "ab"]
    row = validate(tmp_path / "out", write_run(tmp_path, rows), profile, "validate.num_gpu_blocks=7",
                   "validate.enable_prefix_caching=false")  # fmt: skip
    assert row["preemptions"] > 0
    assert row["pool_filled"]
    assert "the pool of 24 tokens filled" in " ".join(capsys.readouterr().out.split())


def chains(*ids: list[int]) -> list[dict[str, Any]]:
    return [{"request_id": row["request_id"], "input_length": row["input_toks"], "block_size": 4, "hash_ids": chain}
            for row, chain in zip(ROWS, ids, strict=False)]  # fmt: skip


def test_prompts_that_begin_alike_hit(tmp_path: Path, profile: Path) -> None:
    """B finds A's 16 tokens: 20 + 15 + 2 (22 + 16 + 16 + 16), read from a file beside the run."""
    run = write_run(tmp_path / "run")
    write_lines(tmp_path / "run/run.prompts.jsonl", chains([1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7, 8]))
    row = validate(tmp_path / "out", run, profile)
    assert row["prefix_hit_pct"] == pytest.approx(100 * 16 / 48)
    assert requests(tmp_path / "out").loc["b", "predicted_ttft_ms"] == pytest.approx(0.113 + 0.175)
    assert "hash chains of all 2 prompts from" in (tmp_path / "out/REPORT.md").read_text()
    assert validate(tmp_path / "none", run, profile, "validate.prompts=none")["prefix_hit_pct"] == 0
    off = validate(tmp_path / "off", run, profile, "validate.enable_prefix_caching=false")
    assert off["prefix_hit_pct"] is None


def test_prompts_as_tokens_are_matched_by_their_position(tmp_path: Path, profile: Path) -> None:
    """As in a workload of LLMServingSim; the file of the run has the later request first."""
    run = write_run(tmp_path / "run", ROWS[::-1])
    path = write_lines(tmp_path / "tokens.jsonl", [{"input_tok_ids": list(range(n))} for n in (32, 16)])
    row = validate(tmp_path / "out", run, profile, f"validate.prompts={path}")
    assert row["prefix_hit_pct"] == pytest.approx(100 * 16 / 48)
    assert requests(tmp_path / "out")["predicted_cached_tokens"].to_dict() == {"a": 0, "b": 16}


def test_prompts_of_another_model_beside_the_run_are_left_aside(tmp_path: Path, profile: Path) -> None:
    run = write_run(tmp_path / "run")
    other = [{**row, "input_length": 8, "hash_ids": [1, 2]} for row in chains([], [])]
    path = write_lines(tmp_path / "run/some_prompts_block4.jsonl", other)
    row = validate(tmp_path / "out", run, profile)
    assert any("were not used" in note and "8 tokens, and 16 in the run" in note for note in row["notes"])
    asked = validate(tmp_path / "asked", run, profile, f"validate.prompts={path}")
    assert "8 tokens, and 16 in the run" in asked["error"]


def test_requests_without_an_end_are_load_and_in_no_figure(tmp_path: Path, profile: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "first_token_ts": None, "last_token_ts": None}]
    row = validate(tmp_path / "out", write_run(tmp_path, rows), profile)
    assert "1 requests have no first or last token: they are load, and in no figure" in row["notes"]
    assert row["mean_error_pct"] < 0.001


def test_what_the_engine_counted_is_drawn_beside_what_is_predicted(tmp_path: Path, profile: Path) -> None:
    run = write_run(tmp_path / "run")
    assert not (tmp_path / "out/figures/over_time.png").exists()
    write(tmp_path / "run/run.timeseries.csv.gz", "t,running,waiting\n0.0001,1,0\n0.0002,1,1\n")
    validate(tmp_path / "out", run, profile)
    assert (tmp_path / "out/figures/over_time.png").stat().st_size > 15_000
    assert "figures/over_time.png" in (tmp_path / "out/REPORT.md").read_text()
    write(tmp_path / "run/run.timeseries.csv.gz", "time,running\n0.0001,1\n")
    notes = validate(tmp_path / "other", run, profile)["notes"]
    assert any("has no columns t, running, waiting and was not used" in note for note in notes)


def test_without_arrival_times_requests_come_when_they_were_queued(tmp_path: Path, profile: Path) -> None:
    """B comes at 143, as A's prompt ends: step 3, as before."""
    rows = [{key: value for key, value in row.items() if key != "arrival_time"} for row in ROWS]
    row = validate(tmp_path / "out", write_run(tmp_path, rows), profile)
    assert row["mean_error_pct"] < 0.001
    assert any("admitted at `queued_ts`" in note for note in row["notes"])


def test_tables_for_each_degree_of_parallelism(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = tmp_path / "tables"
    write_profile(tables / "tp2")
    run = write_run(tmp_path / "run", meta=changed(META, "engine_kwargs.tensor_parallel_size", 2))
    row = validate(tmp_path / "out", run, tables)
    assert row["status"] == "finished", row["error"]
    assert "the tables have no all_reduce" in row["incomplete"] == row["notes"][0]
    printed, report = capsys.readouterr().out, (tmp_path / "out" / "REPORT.md").read_text()
    assert printed.startswith("Status: incomplete, no headline: the tables have no all_reduce")
    assert "Headline" not in printed
    assert report.startswith("# Predicted beside measured\n\n**Status: incomplete, no headline: the tables have no")
    assert "# No headline, the tables have no all_reduce" in report
    assert (
        "holds tables of tensor_parallel=2" in validate(tmp_path / "one", write_run(tmp_path), tables / "tp2")["error"]
    )


def test_tables_of_another_model_or_gpu_are_pointed_out(tmp_path: Path) -> None:
    tables = write_profile(tmp_path / "tables", "model: Other-7B\ngpu: Some GPU\n")
    run = write_run(tmp_path, meta=changed(META, "hardware.device_name", "Some other GPU"))
    notes = validate(tmp_path / "out", run, tables)["notes"]
    assert "the run is of Tiny-1B, the tables are of Other-7B" in notes
    assert "the run was on Some other GPU, the tables are of Some GPU" in notes


def test_the_skew_correction_is_the_tables_choice(tmp_path: Path) -> None:
    """Two decodes with histories of 16 and 48 in one step: a quarter of the way from their mean to the longer."""
    tables = write_profile(tmp_path / "tables", "skew_fit: {enabled: true, per_tp: {1: {alpha_default: 0.5}}}\n")
    names = "pc,n_label,skew_rate_label,kv_big_label,kp_label,alpha,n_samples\n"
    write(tables / "skew_fit.csv", names + "0,n<=2,sr<=70%,kvB<=1k,kp=0,0.25,4\n0,n>2,sr>70%,kvB>1k,kp>0,0.9,4\n")
    rows = [{**ROWS[0], "request_id": name, "input_toks": prompt, "arrival_time": 1e9, "queued_ts": 5.0}
            for name, prompt in (("a", 16), ("b", 48))]  # fmt: skip
    run = write_run(tmp_path, rows)
    row = validate(tmp_path / "out", run, tables)
    assert row["variant"] == "skew on, prefix on, asynchronous"
    assert len(row["mean_error_pct_by_variant"]) == 8
    assert requests(tmp_path / "out").loc["a", "predicted_tpot_ms"] == pytest.approx(decode(64 + 0.25 * 32))
    validate(tmp_path / "off", run, tables, "validate.skew=false")
    assert requests(tmp_path / "off").loc["a", "predicted_tpot_ms"] == pytest.approx(decode(64))


def decode(attention: float) -> float:
    """ms of a step of two decodes."""
    return (20 + 25 + 2 * (22 + 2 + attention)) / 1e3
