"""Makes every request fit the model: what a client declares, and what happens to requests that are too long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from harness.workload.errors import WorkloadError
from harness.workload.readers.checks import Integers
from harness.workload.readers.rows import Rows


@dataclass(slots=True)
class Fitted:
    """Rows that fit, and how many were dropped, clipped or scaled."""

    rows: Rows
    dropped: int = 0
    clipped: int = 0
    scaled: int = 0


def declared_cap(spec: str, rows: Rows, max_model_len: int) -> Integers:
    """The `max_tokens` that each client declares, int64[rows], by `workload.max_tokens`."""
    word, _, number = spec.partition(":")
    output = rows.output_len
    if word == "fixed":
        return np.full(len(rows), int(number), dtype=np.int64)
    if word == "times":
        cap: Integers = np.maximum(1, np.ceil(output * float(number) - 1e-9)).astype(np.int64)
        return cap
    if word == "model_max":
        return np.maximum(1, max_model_len - rows.prompt_len).astype(np.int64)
    if word == "auto" and "max_tokens" in rows.more:
        own = rows.more["max_tokens"]
        return np.where(own > 0, own, output).astype(np.int64)
    return output


def fit_rows(rows: Rows, cap: str, max_model_len: int, how: str, where: Callable[[int], str]) -> Fitted:
    """Applies the clients' caps, then `workload.fit` to rows with prompt + output over `max_model_len`.

    `clip` shortens the prompt to the room that the output leaves, never the output, so a request whose output alone is
    too long is dropped; `scale` shortens both in proportion. A shortened prompt keeps its beginning, so shared prefixes
    stay shared.

    Raises:
        WorkloadError: `how` is "error" and a row does not fit; the message begins with `where(its line)`.
    """
    if cap != "model_max":  # that cap is the room the prompt leaves, which `how` is about to decide
        rows.output_len = np.minimum(rows.output_len, declared_cap(cap, rows, max_model_len))
    total = rows.prompt_len + rows.output_len
    long = total > max_model_len
    if not long.any():
        return Fitted(rows)
    if how == "error":
        first = int(np.argmax(long))
        lengths = f"prompt {rows.prompt_len[first]} + output {rows.output_len[first]}"
        raise WorkloadError(
            f"{where(int(rows.lines[first]))}: {lengths} tokens exceed max_model_len={max_model_len}; "
            "workload.fit=drop, clip or scale deals with such rows"
        )
    if how == "drop":
        return Fitted(rows.take(~long), dropped=int(long.sum()))
    if how == "clip":
        hopeless = rows.output_len >= max_model_len
        clipped = long & ~hopeless
        rows.prompt_len = np.where(clipped, max_model_len - rows.output_len, rows.prompt_len)
        _cut_contents(rows, clipped)
        return Fitted(rows.take(~hopeless), dropped=int(hopeless.sum()), clipped=int(clipped.sum()))
    if max_model_len < 2:
        return Fitted(rows.take(~long), dropped=int(long.sum()))
    # Integers throughout: rounding of floats could leave a sum one token too long.
    rows.prompt_len = np.where(long, np.maximum(1, rows.prompt_len * max_model_len // total), rows.prompt_len)
    rows.output_len = np.where(long, np.maximum(1, rows.output_len * max_model_len // total), rows.output_len)
    _cut_contents(rows, long)
    return Fitted(rows, scaled=int(long.sum()))


def _cut_contents(rows: Rows, changed: np.typing.NDArray[np.bool_]) -> None:
    """Truncates the ids of the rows in the mask to their new prompt lengths."""
    tokens, ids, block = (rows.more.get(name) for name in ("token_ids", "hash_ids", "hash_block"))
    for index in np.flatnonzero(changed).tolist():
        length = int(rows.prompt_len[index])
        if tokens is not None and tokens[index] is not None:
            tokens[index] = tokens[index][:length]
        if ids is not None and block is not None and ids[index] is not None:
            ids[index] = ids[index][: -(-length // int(block[index]))]
