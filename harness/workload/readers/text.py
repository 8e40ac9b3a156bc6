"""Traces that hold text instead of lengths: ShareGPT conversations and `vllm bench` custom prompts.

No tokenizer is at hand, so a text counts as ceil(characters / 4) tokens, and every 64 characters of a prompt (16
tokens) get an id that depends on all text up to there: prompts that begin alike share their prefix in the cache too.
"""

from __future__ import annotations

import hashlib
from typing import Any

from harness.workload.readers.format import ABSENT, Choice, Columns, Format

CHARACTERS_PER_TOKEN = 4
BLOCK = 16
_NOTE = "no tokenizer: tokens = ceil(characters / 4)"


def count_tokens(text: str) -> int:
    """Tokens that a text counts for: ceil(characters / 4)."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def content_ids(text: str) -> list[int]:
    """One 64-bit id per 16 tokens of the text, each chained to all before it."""
    ids, state, step = [], hashlib.blake2b(digest_size=8), BLOCK * CHARACTERS_PER_TOKEN
    for start in range(0, len(text), step):
        state.update(text[start : start + step].encode("utf-8", "surrogatepass"))
        ids.append(int.from_bytes(state.copy().digest(), "little"))
    return ids


def _from_conversations(columns: Columns, choice: Choice) -> Columns:
    """The first turn is the prompt and the second the answer, as `vllm bench` takes them."""
    pairs = [_first_two_turns(value) for value in columns["conversations"]]
    return _lengths([pair[0] for pair in pairs], [count_tokens(a) if isinstance(a, str) else a for _, a in pairs])


def _first_two_turns(turns: Any) -> tuple[Any, Any]:
    pair = [*turns[:2], ABSENT, ABSENT] if isinstance(turns, list) else [ABSENT, ABSENT]
    texts = [turn.get("value", turn.get("content", ABSENT)) if isinstance(turn, dict) else ABSENT for turn in pair]
    return texts[0], texts[1]


def _from_prompts(columns: Columns, choice: Choice) -> Columns:
    either = zip(columns["output_tokens"], columns["expected_output_len"], strict=True)
    return _lengths(columns["prompt"], [second if first is ABSENT else first for first, second in either])


def _lengths(prompts: list[Any], outputs: list[Any]) -> Columns:
    texts = [prompt if isinstance(prompt, str) else None for prompt in prompts]
    return {
        "prompt": [ABSENT if text is None else count_tokens(text) for text in texts],
        "output": outputs,
        "hash_ids": [None if text is None else content_ids(text) for text in texts],
    }


FORMATS = (
    Format(
        name="ShareGPT",
        required=("conversations",),
        prompt="prompt",
        output="output",
        hash_ids="hash_ids",
        default_block=BLOCK,
        derive=_from_conversations,
        inputs=lambda header: ["conversations"],
        note=f"{_NOTE}; prompt and answer are a conversation's first two turns",
    ),
    *(
        Format(
            name="vllm bench custom",
            required=("prompt", key),
            prompt="prompt",
            output="output",
            hash_ids="hash_ids",
            default_block=BLOCK,
            derive=_from_prompts,
            inputs=lambda header: ["prompt", "output_tokens", "expected_output_len"],
            note=_NOTE,
        )
        for key in ("output_tokens", "expected_output_len")
    ),
)
