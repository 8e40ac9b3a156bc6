"""LLMServingSim JSONL, and the measured vLLM runs published with it (epoch seconds)."""

from harness.workload.readers.format import NANOSECOND, SECOND, Format

FORMATS = (
    Format(
        name="LLMServingSim",
        required=("input_toks", "output_toks"),
        prompt="input_toks",
        output="output_toks",
        times=(("arrival_time_ns", NANOSECOND), ("arrival_time", SECOND)),
        untimed=False,
        token_ids="input_tok_ids",
    ),
)
