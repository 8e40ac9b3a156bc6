"""BurstGPT: two layouts in the wild, so columns are found by name and never by position."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="BurstGPT",
        required=("Timestamp", "Request tokens", "Response tokens"),
        prompt="Request tokens",
        output="Response tokens",
        times=(("Timestamp", SECOND),),
        untimed=False,
        session="Session ID",
    ),
)
