"""Splitwise's simulator (SplitwiseSim): CSV with a request's arrival in seconds and its two sizes."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="SplitwiseSim",
        required=("arrival_timestamp", "prompt_size", "token_size"),
        columns={"prompt_len": "prompt_size", "output_len": "token_size"},
        times=(("arrival_timestamp", SECOND),),
        untimed=False,
    ),
)
