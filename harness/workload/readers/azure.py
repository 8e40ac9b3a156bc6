"""Azure LLM inference traces (2023, 2024) and files in their layout, such as NanoFlow's, whose times are "XXX"."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="Azure LLM inference",
        required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        columns={"prompt_len": "ContextTokens", "output_len": "GeneratedTokens"},
        times=(("TIMESTAMP", SECOND),),
        untimed=False,
    ),
)
