"""BurstGPT: two layouts in the wild, so columns are found by name and never by position."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="BurstGPT",
        required=("Timestamp", "Request tokens", "Response tokens"),
        columns={"prompt_len": "Request tokens", "output_len": "Response tokens", "session": "Session ID"},
        times=(("Timestamp", SECOND),),
        passed_over=("Elapsed time",),
        untimed=False,
    ),
)
