"""Files that are whole or not there: written under another name, they take their own once they are complete."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import yaml
from omegaconf import OmegaConf
from omegaconf._utils import get_omega_conf_dumper

from harness.errors import HarnessError
from harness.lookup import closest

if TYPE_CHECKING:
    import pandas as pd


@contextmanager
def written(path: Path, mode: str = "w") -> Iterator[IO[Any]]:
    """A file (UTF-8 if it is text) that appears as `path`, or takes its place, when the block ends well.

    A reader meets the old content or the new one, at whatever moment the process is killed. What fails leaves the old.

    Raises:
        OSError: it names `path`, for a full disk too.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}")
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    try:
        with named(path):
            with open(part, mode, **text) as file:
                yield file
            os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with written(path) as file:
        file.write(text)


def write_yaml(path: Path, values: Any) -> None:
    """A configuration, its interpolations resolved: what `OmegaConf.to_yaml` gives, by libyaml where it is there."""
    plain = OmegaConf.to_container(values, resolve=True, enum_to_str=True)
    write_text(path, yaml.dump(plain, Dumper=_dumper(), sort_keys=False, allow_unicode=True, default_flow_style=False))


def parse_yaml(text: str) -> Any:
    """`yaml.safe_load`, by libyaml where it is there: six times as fast."""
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def _dumper() -> Any:
    """OmegaConf's own, which quotes what it would read as a number, over the faster emitter."""
    own = get_omega_conf_dumper()
    if not hasattr(yaml, "CDumper"):
        return own
    fast: Any = type("Fast", (yaml.CDumper,), {})
    fast.add_representer(str, own.str_representer)
    return fast


def write_table(path: Path, table: pd.DataFrame) -> None:
    """A CSV file of a table without its index, whole or not at all."""
    with written(path) as file:
        table.to_csv(file, index=False)


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all; what JSON has no word for is written as text, what is not finite as null."""
    try:
        text = json.dumps(value, indent=1, allow_nan=False, default=_plain)
    except ValueError:
        text = json.dumps(_finite(value), indent=1, allow_nan=False)
    write_text(path, text + "\n")


@contextmanager
def named(path: Path | None) -> Iterator[None]:
    """Let an OSError say which file it is about: the one of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None and path is not None:
            error.filename = str(path)
        raise


def missing(path: str, what: str = "file") -> str:
    """The message for a path that does not exist, with the most similar entry of its folder; "" if it exists."""
    if os.path.exists(path):
        return ""
    folder, base = os.path.split(path)
    try:
        close = closest(base, os.listdir(folder or "."))
    except OSError:
        return f"there is no such {what}; there is no folder {folder} either"
    return f"there is no such {what}" + (f"; did you mean {os.path.join(folder, close[0])}?" if close else "")


def read_csv(path: Path, key: str, columns: Sequence[str]) -> pd.DataFrame:
    """A table that has these columns at least. `key` is the configuration key that names it.

    Raises:
        HarnessError: it is not there, no table, or lacks a column.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise HarnessError(f"{key}={path} can't be read: {error}") from error
    lacking = [column for column in columns if column not in table]
    if lacking:
        raise HarnessError(f"{key}={path}: columns {', '.join(lacking)} are missing")
    return table


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows, each as a mapping."""
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # a number of numpy's


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else _finite(_plain(value))
