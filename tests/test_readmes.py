"""Every command in every README can be composed: keys, groups and experiments that it names exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from harness.__main__ import COMMANDS
from harness.claims import composed

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDERS = {"FILE": "a.csv", "DIR": "somewhere"}


def commands() -> list[str]:
    """What stands after `python -m harness` in the bash blocks of the README files."""
    found = []
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/README.md")]):
        for block in re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.search(r"python -m harness(?: (?P<words>.*))?$", line.split("   #")[0].strip().rstrip('"'))
                if match and "$(" not in line:
                    found.append(match["words"] or "")
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("words", commands())
def test_a_command_of_a_readme_composes(words: str) -> None:
    parts = shlex.split(words, comments=True)
    if parts and parts[0] in COMMANDS:
        return
    parts = [part for part in parts if part not in ("-m", "--multirun", "--help", "--cfg", "job")]
    for part in parts:
        assert "=" in part, part
    single = [re.sub(r"=([^\[{]*?),.*", r"=\1", part) for part in parts]  # the first of the values that are swept
    composed([re.sub(r"\b(FILE|DIR)\b", lambda word: PLACEHOLDERS[word[0]], part) for part in single])


def test_the_readme_fits_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140
