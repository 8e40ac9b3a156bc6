"""The architectures that are tested, as tiny models."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

TESTED_WITH = "5.24"  # the version of transformers
# What those of `families.yaml` do not say.
COMMON = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 256, "tie_word_embeddings": False,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


SERVED, REFUSED = "served", "refused"


@cache
def families(which: str = SERVED) -> dict[str, dict[str, Any]]:
    """A config for each architecture that is `SERVED`, or `REFUSED`."""
    written = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    return {name: COMMON | config for name, config in written[which].items()}
