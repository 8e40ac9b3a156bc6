"""The answer to one request: a stream of events, parsed piece by piece, whatever it holds."""

from __future__ import annotations

import json
from array import array
from collections import defaultdict
from typing import Any

from harness.errors import HarnessError

DECODE = json.JSONDecoder().decode  # `json.loads` would guess the encoding each time
LONGEST = 2**24  # bytes of an event
MOST = 2**40  # the largest count that is believed
SHOWN = 160  # characters of a server's message that are quoted


class StreamError(HarnessError):
    """The stream is malformed, or reports an error."""


class Lines:
    """The `data:` lines of a server-sent event stream that arrives in pieces cut anywhere.

    Comments (`:`), `event:`, `id:` and `retry:` are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """The data lines that `piece` completes, and an empty one where an event ends.

        Raises:
            StreamError: a line of no event stream, or one without an end.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LONGEST:
            raise StreamError(f"a line has more than {LONGEST:,} bytes: {quoted(self._rest[: 2 * SHOWN])}")
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                found.append(line[5:].strip())
            elif line in (b"", b"\r"):
                found.append(b"")
            elif line.startswith(b"error:"):  # of llama.cpp
                raise StreamError(f"the server says {quoted(line[6:])}")
            elif line.strip() and not line.startswith((b":", b"event:", b"id:", b"retry:")):
                raise StreamError(f"it is no event stream: {quoted(line)}")
        return found


class Answer:
    """One request's answer as it grows.

    A piece is an event with text of a choice, or one without text that does not end the choice (tokens may have no text
    of their own). A final event without text, only with a `finish_reason`, counts as a token if the server's count says
    so; a first event that only names a role does not.

    Attributes:
        times: by choice, when (ns) each piece came.
        counts: by choice, tokens of each piece if the server tells (`token_ids`, a running count), else 1.
        usage: the server's own counts, from the last event that had any.
        ended: by choice, its `finish_reason`.
        done: whether `[DONE]` came.
    """

    def __init__(self) -> None:
        self.lines = Lines()
        self.times: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self.counts: defaultdict[int, array[int]] = defaultdict(lambda: array("q"))
        self.usage: dict[str, Any] = {}
        self.ended: dict[int, str] = {}
        self.done = False
        self._part = b""  # of an event that spans several data lines
        self._empty_end: dict[int, int] = {}  # by choice, when a final event without text came
        self._counts, self._told = False, 0  # whether every event has a running count of tokens, and the last count

    def feed(self, piece: bytes, now: int) -> None:
        """Bytes that came at `now` (ns).

        Raises:
            StreamError: they are no event stream or no JSON, or the server reports an error.
        """
        for data in self.lines.feed(piece):
            if data == b"[DONE]":
                self.done = True
                continue
            if not data or len(self._part) > LONGEST:
                if self._part:
                    raise StreamError(f"an event is no JSON: {quoted(self._part)}")
                continue
            if self._part:
                data = self._part + b"\n" + data
            try:
                event = DECODE(data.decode())
            except (ValueError, RecursionError):
                self._part = data  # perhaps there is more of it
                continue
            self._part = b""
            if not isinstance(event, dict):
                raise StreamError(f"an event is no object: {quoted(data)}")
            self._event(event, now)

    def _event(self, event: dict[str, Any], now: int) -> None:
        if event.get("error") or event.get("object") == "error":
            raise StreamError(f"the server says {quoted(message_of(event))}")
        usage = event.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        if not self.times:  # a server that keeps count does so from the first piece on
            self._counts = isinstance(usage, dict)
        choices = event.get("choices")
        if not isinstance(choices, list):
            return
        for choice in choices:
            if not isinstance(choice, dict):
                raise StreamError(f"a choice is no object: {quoted(str(choice))}")
            self._choice(choice, now, len(choices) == 1)

    def _choice(self, choice: dict[str, Any], now: int, alone: bool) -> None:
        index, delta = count_of(choice.get("index")) or 0, choice.get("delta")
        text, why = _text(choice, delta), choice.get("finish_reason")
        if why:
            self.ended[index] = str(why)
        if not text:
            if why:
                self._empty_end[index] = now
                return
            if isinstance(delta, dict) and "role" in delta:
                return
        ids = choice.get("token_ids")
        told = self.counted
        count = 1
        if isinstance(ids, list) and ids:
            count = len(ids)
        elif self._counts and alone and told is not None and told > self._told:
            count, self._told = told - self._told, told
        self.times[index].append(now)
        self.counts[index].append(count)

    def close(self) -> None:
        """The stream is over: final events without text are tokens if the server counted more tokens than came."""
        told = self.counted
        if told is not None:
            for index, when in self._empty_end.items():
                if self.pieces < told:
                    self.times[index].append(when)
                    self.counts[index].append(1)
        self._empty_end.clear()

    @property
    def counted(self) -> int | None:
        """The server's own count of tokens; None if it is 0, since it was then made before there were any."""
        return count_of(self.usage.get("completion_tokens")) or None

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the server found in its prefix cache, if it tells."""
        details = self.usage.get("prompt_tokens_details")
        return count_of(details.get("cached_tokens")) if isinstance(details, dict) else None

    @property
    def pieces(self) -> int:
        return sum(map(len, self.times.values()))

    @property
    def tokens(self) -> int:
        """The server's count, or else the tokens that came."""
        told = self.counted
        return told if told is not None else sum(map(sum, self.counts.values()))

    @property
    def first_ns(self) -> int:
        """When the first piece of any choice came; -1 = none did."""
        return min((times[0] for times in self.times.values()), default=-1)

    @property
    def last_ns(self) -> int:
        return max((times[-1] for times in self.times.values()), default=-1)


def count_of(value: Any) -> int | None:
    """The value if it is a plausible count (a whole number), else None."""
    return value if type(value) is int and 0 <= value < MOST else None


def _text(choice: dict[str, Any], delta: Any) -> str:
    """The text of a completion, or of a chat's delta: content, reasoning, or a tool call."""
    if not isinstance(delta, dict):
        return choice.get("text") or ""
    return delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or (
        "call" if delta.get("tool_calls") else "")  # fmt: skip


def message_of(body: Any) -> str:
    """The message in an error's JSON, from whichever of the usual places."""
    for _ in range(3):
        if isinstance(body, dict):
            body = body.get("error") or body.get("message") or body.get("detail") or body
    return body if isinstance(body, str) else json.dumps(body)


def quoted(text: str | bytes) -> str:
    """A server's message on one line, shortened."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    text = " ".join(text.split())
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
