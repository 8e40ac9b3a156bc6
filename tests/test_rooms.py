"""Imports go one way: each part of the program builds on those below it, and none below knows of one above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the ground up. What stands on one floor does not import each other; within a room everything may.
FLOORS = (
    "allocators",
    "schedulers",
    "harness.errors harness.installation",
    "harness.lookup",
    "harness.files harness.devices harness.compiled harness.published harness.routers harness.layout",
    "harness.schema harness.groups harness.operators harness.folders harness.environment",
    "harness.console harness.naming harness.workload",
    "harness.config harness.metrics harness.runner",
    "harness.exports harness.replay",
    "harness.job",
    "harness.report",
    "harness.sweeps harness.tasks harness.validate harness.measured",
    "harness.live harness.compare harness.plugins harness.gpu_check harness.library",
    "harness.__init__ harness.__main__",
)
PACKAGES = ("allocators", "schedulers", "harness")
FLOOR = {room: number for number, floor in enumerate(FLOORS) for room in floor.split()}


def test_imports_go_down() -> None:
    wrong = {
        f"{room} imports {other}"
        for room, path in files()
        for other in imported(ast.parse(path.read_text(encoding="utf-8")))
        if other != room and FLOOR[other] >= FLOOR[room]
    }
    assert not wrong


def test_every_room_has_its_floor() -> None:
    assert {room for room, _ in files()} == set(FLOOR)


def files() -> Iterator[tuple[str, Path]]:
    """(room, file) of the program; of a loose module the room is itself."""
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            yield room_of(".".join(path.relative_to(ROOT).with_suffix("").parts)), path


def imported(tree: ast.AST) -> Iterator[str]:
    """Rooms that a module imports, in its functions too; what only a type checker reads is none."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        yield from (room_of(name) for name in names if name.partition(".")[0] in PACKAGES)
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from imported(node)


def room_of(module: str) -> str:
    """``harness.report`` of ``harness.report.style``; a module that is no room or loose module is the package's own."""
    package, _, rest = module.partition(".")
    if package != "harness":
        return package
    return f"harness.{rest.partition('.')[0] or '__init__'}"
