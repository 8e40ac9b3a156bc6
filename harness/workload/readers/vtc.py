"""VTC (fair serving): requests of many tenants."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="VTC",
        required=("req_time", "prompt_len", "output_len"),
        columns={"prompt_len": "prompt_len", "output_len": "output_len", "session": "client"},
        times=(("req_time", SECOND),),
        untimed=False,
    ),
)
