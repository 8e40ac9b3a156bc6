"""Hash chains of a measured run's prompts, from a file beside it: they decide what its prefix cache hits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.errors import HarnessError
from harness.validate.files import read_lines, stem
from harness.validate.measured import Measured


def find_prompts(measured: Measured, wanted: str | None) -> None:
    """Add the hash chains of the prompts, matched by `request_id`.

    Args:
        wanted: a file; `auto` = one beside the run that has every request with its length; `none` or None = no chains.

    Raises:
        HarnessError: the file that was asked for does not fit; the message names the first request that it lacks.
    """
    if wanted in (None, "none"):
        return
    if wanted != "auto":
        measured.hashes, measured.prompts = _chains(measured, Path(wanted)), Path(wanted)
        return
    for path in _candidates(measured.path):
        try:
            measured.hashes, measured.prompts = _chains(measured, path), path
        except HarnessError as error:
            measured.notes.append(f"prompts beside the run were not used: {error}")
        else:
            return


def _candidates(path: Path) -> Iterable[Path]:
    """Files beside a run that may hold its prompts, those with the run's name first."""
    own = stem(path)
    files = sorted(file for file in path.parent.glob("*prompts*") if ".jsonl" in file.suffixes)
    return sorted(files, key=lambda file: not file.name.startswith(own))


def _chains(measured: Measured, path: Path) -> list[tuple[int, Any]]:
    """(tokens per id, ids) of every request, in the order of `measured`; by position if the file has no request ids."""
    known: dict[str, tuple[int, int, Any]] = {}
    for position, (number, row) in enumerate(read_lines(path, "validate.prompts")):
        name = row.get("request_id")
        known[f"row {position}" if name is None else str(name)] = _prompt(path, number, row)
    chains, numbered = [], all(name.startswith("row ") for name in known)
    columns = (measured.table[name] for name in ("request_id", "row", "prompt_tokens"))
    for name, position, length in zip(*columns, strict=True):
        key = f"row {position}" if numbered else name
        if key not in known:
            raise HarnessError(f"{path}: there is no prompt of request {name}")
        if known[key][0] != length:
            raise HarnessError(f"{path}: the prompt of request {name} has {known[key][0]} tokens, and {length} in the "
                               "run: are they of another model?")  # fmt: skip
        chains.append(known[key][1:])
    return chains


def _prompt(path: Path, number: int, row: dict[str, Any]) -> tuple[int, int, Any]:
    """(tokens, tokens per id, ids) of a prompt: the hash ids of its pieces, or its token ids with one token per id."""
    if isinstance(tokens := row.get("input_tok_ids"), list):
        length, block, ids = len(tokens), 1, tokens
    else:
        block, length, ids = row.get("block_size"), row.get("input_length"), row.get("hash_ids")  # type: ignore[assignment]
    if type(length) is not int or not isinstance(ids, list):
        raise HarnessError(f"{path}:{number}: prompts need request_id, input_length, block_size and hash_ids, or "
                           "input_tok_ids")  # fmt: skip
    if type(block) is not int or block < 1 or len(ids) != -(-length // block):
        raise HarnessError(f"{path}:{number}: {length} tokens in pieces of block_size={block} have not {len(ids)} "
                           "hash_ids")  # fmt: skip
    try:
        return length, block, array("Q", [value % (1 << 64) for value in ids])
    except TypeError as error:
        raise HarnessError(f"{path}:{number}: hash_ids must be whole numbers") from error
