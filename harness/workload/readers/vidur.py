"""Vidur, Sarathi, Etalon and vAttention CSV: with `arrived_at` (seconds) or lengths only."""

from harness.workload.readers.format import SECOND, Format

FORMATS = (
    Format(
        name="Vidur",
        required=("num_prefill_tokens", "num_decode_tokens"),
        columns={"prompt_len": "num_prefill_tokens", "output_len": "num_decode_tokens"},
        times=(("arrived_at", SECOND),),
        passed_over=("num_total_tokens", "pd_ratio"),
    ),
)
