"""Chat logs (ShareGPT, LMSYS-Chat-1M, WildChat, `messages` ...) and tables of prompts and answers, as text."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from harness.workload.readers.format import ABSENT, Choice, Columns
from harness.workload.readers.text import lengths, text_format, text_of

_ANSWERS = {"assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", "ai", "claude", "chatbot"}
_ASKS = {"user", "human", "system", "developer", "tool", "function", "prompter", "observation"}
_FIRST = "prompt and answer are a conversation's first exchange, with what stands before it"
_PAIRS = (  # the prompt's columns in order, the one that is always there, the answer's
    (("instruction", "input"), "instruction", "output"),
    (("context", "instruction"), "instruction", "response"),
    (("system_prompt", "question"), "question", "response"),
    (("question",), "question", "answer"),
    (("input",), "input", "output"),
    *((("prompt",), "prompt", answer) for answer in ("completion", "response", "output", "answer")),
)


def exchange(turns: Any) -> tuple[Any, Any]:
    """(the text up to a conversation's first answer, that answer); ABSENT for what is missing.

    Turns without a role are taken as `vllm bench` does: the first is the user's, the second the assistant's.
    """
    if isinstance(turns, str) and turns.lstrip().startswith("["):  # a cell of a table
        with contextlib.suppress(ValueError, RecursionError):
            turns = json.loads(turns)
    if not isinstance(turns, list):
        return ABSENT, ABSENT
    roles = [str(turn.get("from", turn.get("role", ""))).lower() if isinstance(turn, dict) else "" for turn in turns]
    place = next((index for index, role in enumerate(roles) if index and role in _ANSWERS), None)
    if place is None:
        place = len(turns) if roles and set(roles) <= _ASKS | _ANSWERS else 1
    texts = [text_of(turn) for turn in turns[: place + 1]]
    return text_of(texts[:place]) if texts[:place] else ABSENT, texts[place] if place < len(turns) else ABSENT


def _conversations(column: str) -> Any:
    def derive(columns: Columns, choice: Choice) -> Columns:
        pairs = [exchange(value) for value in columns[column]]
        return lengths([prompt for prompt, _ in pairs], [answer for _, answer in pairs])

    return derive


def _messages(columns: Columns, choice: Choice) -> Columns:
    """All messages are the prompt if the answer's length is given separately; otherwise as in `exchange`."""
    pairs = [
        exchange(turns) if length is ABSENT or length is None else (text_of(turns), length)
        for turns, length in zip(columns["messages"], columns["output_length"], strict=True)
    ]
    return lengths([prompt for prompt, _ in pairs], [answer for _, answer in pairs])


def _pair(prompts: tuple[str, ...], needed: str, answer: str) -> Any:
    def derive(columns: Columns, choice: Choice) -> Columns:
        rows = zip(columns[needed], *(columns[name] for name in prompts), strict=True)
        asked = [
            ABSENT if asks is ABSENT else text_of([part for part in parts if not _is_nothing(part)])
            for asks, *parts in rows
        ]
        return lengths(asked, [text_of(value) for value in columns[answer]])

    return derive


def _is_nothing(value: Any) -> bool:
    return value is ABSENT or value is None


FORMATS = (
    text_format("ShareGPT", ("conversations",), _conversations("conversations"), note=_FIRST),
    text_format("LMSYS-Chat", ("conversation",), _conversations("conversation"), note=_FIRST),
    text_format(
        "Chatbot Arena",
        ("conversation_a", "conversation_b"),
        _conversations("conversation_a"),
        note=f"{_FIRST}, of model a",
    ),
    text_format("messages", ("messages",), _messages, ("output_length",), session="session_id", note=_FIRST),
    *(
        text_format("prompts and answers", (needed, answer), _pair(prompts, needed, answer), prompts)
        for prompts, needed, answer in _PAIRS
    ),
)
