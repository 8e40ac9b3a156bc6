"""Traces that hold text instead of lengths.

There is no tokenizer here, so a text counts as ceil(characters / 4) tokens, and every 64 characters of a prompt (16
tokens) get an id that depends on all text up to their end: prompts with a common beginning share a prefix in the cache.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from harness.workload.readers.format import ABSENT, Choice, Columns, Format

CHARACTERS_PER_TOKEN = 4
BLOCK = 16
NOTE = "no tokenizer: tokens = ceil(characters / 4)"
PROMPT, ANSWER, IDS = "the prompt", "the answer", "the prompt's ids"
TIMES: tuple[tuple[str, int | None], ...] = tuple(
    (name, None)
    for name in ("arrival_time", "timestamp", "created_at", "create_time", "created", "tstamp", "time", "arrival")
)


def count_tokens(text: str) -> int:
    """Tokens that a text counts for: ceil(characters / 4)."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


def content_ids(text: str) -> list[int]:
    """One 64-bit id per 16 tokens of the text; each is a hash of all text up to the end of its piece."""
    ids, state, step = [], hashlib.blake2b(digest_size=8), BLOCK * CHARACTERS_PER_TOKEN
    for start in range(0, len(text), step):
        state.update(text[start : start + step].encode("utf-8", "surrogatepass"))
        ids.append(int.from_bytes(state.copy().digest(), "little"))
    return ids


def text_of(value: Any) -> Any:
    """The text of a message, of its content, of its parts, or of a list of these; ABSENT if there is none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        texts = [text_of(item) for item in value]
        return "".join(texts) if all(isinstance(text, str) for text in texts) else ABSENT
    if not isinstance(value, dict):
        return ABSENT
    text = next((value[key] for key in ("value", "content", "text") if key in value), ABSENT)
    calls = value.get("tool_calls")
    if text is None or text is ABSENT:
        text = "" if calls else text
    text = text_of(text)
    return text + json.dumps(calls, ensure_ascii=False) if calls and isinstance(text, str) else text


def lengths(prompts: Sequence[Any], answers: Sequence[Any]) -> Columns:
    """Columns of lengths from prompts and answers: texts, or lengths (answers, or both in a table of numbers only)."""
    if prompts and all(isinstance(value, str) and value.strip().isdecimal() for value in (*prompts, *answers)):
        return {PROMPT: list(prompts), ANSWER: list(answers)}
    texts = [prompt if isinstance(prompt, str) else None for prompt in prompts]
    return {
        PROMPT: [ABSENT if text is None else count_tokens(text) for text in texts],
        ANSWER: [count_tokens(answer) if isinstance(answer, str) else answer for answer in answers],
        IDS: [None if text is None else content_ids(text) for text in texts],
    }


def text_format(name: str, required: tuple[str, ...], derive: Callable[[Columns, Choice], Columns],
                inputs: Sequence[str] = (), session: str | None = None, note: str = "") -> Format:  # fmt: skip
    """A format whose lengths are derived from texts in the columns `required` and `inputs`."""
    read = list(dict.fromkeys([*required, *inputs]))
    return Format(
        name=name,
        required=required,
        columns={"prompt_len": PROMPT, "output_len": ANSWER, "hash_ids": IDS}
        | ({"session": session} if session else {}),
        times=TIMES,
        passed_over=("timestamps", "pre_gap", "delay", "current_date"),
        default_block=BLOCK,
        derive=derive,
        inputs=lambda header: read,
        note=f"{NOTE}; {note}" if note else NOTE,
    )


def _from_prompts(columns: Columns, choice: Choice) -> Columns:
    either = zip(columns["output_tokens"], columns["expected_output_len"], strict=True)
    outputs = [second if first is ABSENT else first for first, second in either]
    found = lengths(columns["prompt"], outputs)
    return found | {ANSWER: outputs}  # numbers, also where CSV has them as text


FORMATS = tuple(
    text_format("vllm bench custom", ("prompt", key), _from_prompts, ("output_tokens", "expected_output_len"))
    for key in ("output_tokens", "expected_output_len")
)
