"""`python -m harness list`: what there is to choose from, each with the sentence that its own file begins with."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import yaml
from rich.console import Console
from rich.table import Table

from harness.console.screen import screen
from harness.errors import HarnessError
from harness.groups import files
from harness.installation import EXPERIMENTS
from harness.lookup import nearest

HARDWARE = Path(__file__).parents[1] / "runner" / "latency" / "hardware"
GROUPS = {
    "experiments": ("experiment=", "a question, with the sweep that answers it"),
    "systems": ("system=", "published systems; others by their parts: system=static+paged+on_demand"),
    "allocators": ("allocator=", "where the KV cache of a sequence lies"),
    "schedulers": ("scheduler=", "who is in the next batch"),
    "workloads": ("workload=", "which requests arrive"),
    "models": ("model=", "what is served, with random weights (or model.path=, model.config=)"),
    "hardware": ("device.hardware=", "machines for device=simulated"),
}


def list_names(wanted: str | None = None, console: Console | None = None) -> None:
    """Print the names of one kind of thing, or of all kinds.

    Raises:
        HarnessError: there is no such kind.
    """
    console = console or screen()
    if wanted is not None and wanted not in GROUPS:
        raise HarnessError(f"list {wanted}: there is no such list{nearest(wanted, list(GROUPS))}")
    for name in [wanted] if wanted else GROUPS:
        key, text = GROUPS[name]
        table = Table(title=f"{name}: {text}", title_justify="left", title_style="bold", box=None, show_header=False,
                      padding=(0, 2, 0, 0), pad_edge=False)  # fmt: skip
        table.add_column(no_wrap=True)
        table.add_column()
        for choice, sentence in entries(name):
            table.add_row(f"{key}{choice}", sentence)
        console.print(table)
        console.print()


def entries(name: str) -> Iterator[tuple[str, str]]:
    """(choice, sentence) of each file of a kind, by name."""
    folder = HARDWARE if name == "hardware" else EXPERIMENTS / name.rstrip("s")
    for path in files(folder):
        yield path.stem, first_sentence(path)


def first_sentence(path: Path) -> str:
    """The first sentence of a configuration file's comment, or of the plug-in that it names."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "@package" not in line:
            comment.append(line.lstrip("# "))
        elif comment or (line.strip() and not line.startswith("#")):
            break
    text = " ".join(comment) or _of_target(path)
    found = re.match(r"(.+?[.?!:])(?=\s+[A-Z`(]|\s*$)", text, re.DOTALL)
    return (found[1] if found else text).strip()


def _of_target(path: Path) -> str:
    """The docstring of the class that `_target_` names, read without importing it; or of the file's first default."""
    values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    target = str(values.get("_target_", ""))
    module, _, name = target.rpartition(".")
    spec = find_spec(module) if module else None
    if not spec or not spec.origin:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    found: Callable[[ast.AST], bool] = lambda node: getattr(node, "name", None) == name  # noqa: E731
    node = next((n for n in tree.body if found(n)), tree)
    text = (ast.get_docstring(node) if isinstance(node, ast.ClassDef | ast.FunctionDef) else "") or ""
    return " ".join((text or ast.get_docstring(tree) or "").split("\n\n")[0].split())
