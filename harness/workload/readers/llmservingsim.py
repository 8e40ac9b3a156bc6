"""LLMServingSim JSONL, and the measured vLLM runs published with it (epoch seconds)."""

from harness.workload.readers.format import NANOSECOND, SECOND, Format

FORMATS = (
    Format(
        name="LLMServingSim",
        required=("input_toks", "output_toks"),
        columns={"prompt_len": "input_toks", "output_len": "output_toks", "token_ids": "input_tok_ids"},
        times=(("arrival_time_ns", NANOSECOND), ("arrival_time", SECOND)),
        passed_over=("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts"),
        untimed=False,
    ),
)
