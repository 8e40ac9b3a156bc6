"""`experiments/KEYS.md` is what the schema says."""

from harness.config.table import FILE, text
from harness.schema.keys import KEYS


def test_it_is_current() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "python -m harness.config writes it anew"


def test_it_has_every_key_once() -> None:
    rows = [line for line in text().splitlines() if line.startswith("| `") and line.count(" | ") == 4]
    assert [row.split("`")[1] for row in rows] == list(KEYS)
