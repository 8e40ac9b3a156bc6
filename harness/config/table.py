"""`experiments/KEYS.md`: every key with what it may be, made from where it is checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.groups import files, written
from harness.installation import EXPERIMENTS
from harness.schema.key import Key
from harness.schema.keys import GROUPS
from harness.schema.keys.plugins import HOME

FILE = EXPERIMENTS / "KEYS.md"
INTRODUCTION = """# Every key

Made by `python -m harness.config` from the schema in `harness/schema/keys`, which checks each job before any work: a
wrong value is answered with exit code 2, for every job of a sweep before its first one. Set them as `key=value`;
`python -m harness --cfg job` prints what they are without that.

- True or false may be written as YAML does: `true`, `on`, `yes`, `y` or `false`, `off`, `no`, `n`, in any capitals.
- A whole number may be written as `12e9`. Where null is allowed it means "not set".
- `workload=…`, `allocator=…`, `reservation=…`, `scheduler=…`, `model=…`, `device=…`, `server=…`, `system=…` and
  `experiment=…` choose a file of that folder, which sets many keys; `system=null` chooses none.
- `system=static+paged+on_demand` is a system by its parts: names of a scheduler, an allocator and a reservation, in any
  order.
- A class of your own (`allocator._target_`, `scheduler._target_`) has the arguments of its constructor as its keys,
  with what their annotations say. The tables below hold for those that come with the program.
- A key that you set and that has no effect (last column) is said in a warning; the run goes on.
"""


def text() -> str:
    """The whole file."""
    lines = [INTRODUCTION]
    for title, keys in GROUPS.items():
        lines += [f"## {title}", "", "| key | values | unit | what it is | counts only |", "|---|---|---|---|---|"]
        lines += [_row(key) for key in keys]
        lines += ["", *_classes(title)]
    return "\n".join(lines).rstrip() + "\n"


def write() -> Path:
    """Write the file anew."""
    FILE.write_text(text(), encoding="utf-8")
    return FILE


def _row(key: Key) -> str:
    cells = (f"`{key.name}`", f"{key.kind}" + (", or null" if key.null else ""), key.unit, key.about,
             " and ".join(when.text for when in key.when))  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _classes(title: str) -> Iterator[str]:
    """Which of the keys of allocators and schedulers each class takes, as its constructor says."""
    if not title.startswith("Allocator"):
        return
    from harness.lookup import locate
    from harness.schema import plugins

    yield from ("| class | keys |", "|---|---|")
    for group in HOME:
        for target in sorted({str(written(path)["_target_"]) for path in files(EXPERIMENTS / group)}):
            takes = plugins.arguments(locate(target, group))
            yield f"| `{target}` | {', '.join(f'`{name}`' for name in takes) or '–'} |"
    yield ""
