"""ServeGen: requests generated from fits of production clients."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="ServeGen",
        required=("input_tokens", "output_tokens"),
        columns={"prompt_len": "input_tokens", "output_len": "output_tokens", "session": "client_id"},
        times=(("timestamp_s", SECOND), ("timestamp", SECOND)),
    ),
)
