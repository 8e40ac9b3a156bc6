"""ServeGen: requests generated from fits of production clients."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="ServeGen",
        required=("input_tokens", "output_tokens"),
        prompt="input_tokens",
        output="output_tokens",
        times=(("timestamp_s", SECOND), ("timestamp", SECOND)),
        session="client_id",
    ),
)
