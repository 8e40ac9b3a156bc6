"""Mooncake JSONL, its relatives with `session_id` or `block_size`, and Alibaba's Bailian traces."""

from harness.workload.readers.format import MILLISECOND, SECOND, Format

FORMATS = (
    Format(
        name="Mooncake",
        required=("input_length", "output_length"),
        prompt="input_length",
        output="output_length",
        times=(("timestamp", MILLISECOND),),
        untimed=False,
        session="session_id",
        hash_ids="hash_ids",
        block="block_size",
        default_block=512,
    ),
    Format(
        name="Bailian",
        required=("chat_id", "input_length", "output_length"),
        prompt="input_length",
        output="output_length",
        times=(("timestamp", SECOND),),
        untimed=False,
        hash_ids="hash_ids",
        block="block_size",
        default_block=16,
    ),
)
