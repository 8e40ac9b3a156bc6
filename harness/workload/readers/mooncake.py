"""Mooncake JSONL, its relatives with `session_id` or `block_size`, and Alibaba's Bailian traces."""

from harness.workload.readers.format import MILLISECOND, SECOND, Format

_COLUMNS = {
    "prompt_len": "input_length",
    "output_len": "output_length",
    "session": "session_id",
    "hash_ids": "hash_ids",
    "hash_block": "block_size",
}

FORMATS = (
    Format(
        name="Mooncake",
        required=("input_length", "output_length"),
        columns=_COLUMNS,
        times=(("timestamp", MILLISECOND),),
        untimed=False,
        default_block=512,
    ),
    Format(
        name="Bailian",
        required=("chat_id", "input_length", "output_length"),
        columns={name: column for name, column in _COLUMNS.items() if name != "session"},
        times=(("timestamp", SECOND),),
        untimed=False,
        default_block=16,
    ),
)
