"""VTC (fair serving): requests of many tenants."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="VTC",
        required=("req_time", "prompt_len", "output_len"),
        prompt="prompt_len",
        output="output_len",
        times=(("req_time", SECOND),),
        untimed=False,
        session="client",
    ),
)
