"""Our own traces, CSV or JSONL, as `export` writes them and as a person would."""

from harness.workload.readers.format import NANOSECOND, SECOND, Format

FORMATS = (
    Format(
        name="kvlab",
        required=("prompt_len", "output_len"),
        prompt="prompt_len",
        output="output_len",
        times=(("arrival_ns", NANOSECOND), ("arrival_s", SECOND)),
        keep_origin=True,
        session="session",
        hash_ids="hash_ids",
        block="hash_block",
        token_ids="token_ids",
        max_tokens="max_tokens",
        priority="priority",
        n="n",
        use_beam_search="use_beam_search",
    ),
)
