"""Reads the files beside a measured run, plain or gzip, with errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import HarnessError

SUFFIXES = ("", ".gz")


def read_text(path: Path, key: str) -> str:
    """The text of a file; gzip is recognised by its first bytes. `key` is the configuration key that names the file."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except FileNotFoundError as error:
        raise HarnessError(f"{key}={path}: there is no such file") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise HarnessError(f"{key}={path} can't be read: {error}") from error


def read_json(path: Path, key: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(read_text(path, key))
    except json.JSONDecodeError as error:
        raise HarnessError(f"{key}={path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise HarnessError(f"{key}={path} must be a JSON object, not a {type(value).__name__}")
    return value


def read_lines(path: Path, key: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number from 1, object) of every line that is not empty."""
    for number, line in enumerate(read_text(path, key).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise HarnessError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise HarnessError(f"{path}:{number}: must be a JSON object, one a line")
        yield number, row


def stem(path: Path) -> str:
    """The name without `.jsonl`, `.json` and `.gz`."""
    name = path.name
    for suffix in (".gz", ".jsonl", ".json"):
        name = name.removesuffix(suffix)
    return name


def beside(path: Path, kind: str, suffix: str) -> Path | None:
    """The file of that kind beside `path`: `NAME.kind.suffix`, or `kind.suffix` if the run has a folder of its own."""
    names = (f"{stem(path)}.{kind}{suffix}", f"{kind}{suffix}")
    found = (path.with_name(name + gz) for name in names for gz in SUFFIXES)
    return next((file for file in found if file.is_file()), None)
