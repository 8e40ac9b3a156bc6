"""Vidur, Sarathi, Etalon and vAttention CSV: with `arrived_at` (seconds) or lengths only."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="Vidur",
        required=("num_prefill_tokens", "num_decode_tokens"),
        prompt="num_prefill_tokens",
        output="num_decode_tokens",
        times=(("arrived_at", SECOND),),
    ),
)
