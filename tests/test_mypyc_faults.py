"""What mypyc gets wrong, and how the rules of `harness.compiled` mend it (slow)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness import compiled

HEAD = "from __future__ import annotations\n\nimport sys\nfrom abc import ABC\nfrom typing import Any\n\n"
FAULTS = {  # of each rule: a module, what is done with it, and what comes of that without the rule, and with it
    "open_classes": ("class A: pass", "type('B', (m.A,), {})()", "interpreted classes cannot inherit", ""),
    "open_classes of errors": ("class A(RuntimeError): pass", "m.A()", "builtin types is unimplemented", ""),
    "no_abstract_base": ("class A(ABC): pass", "a = m.A(); r = weakref.ref(a); del a; gc.collect(); r()", "ended by 11",
                         "cannot create weak reference"),
    "base_by_name": ("""class A:
    def __init__(self, x: int) -> None:
        self.x = x
class B(A):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)""", "m.B(1)", "got tuple[int]", ""),
    "plain_floats": ("""class A:
    def __init__(self, *args: Any, x: float = 0.5, **kwargs: Any) -> None:
        self.x = x
class B(A):
    def __init__(self, *args: Any, y: float = 0.5, **kwargs: Any) -> None:
        A.__init__(self, *args, x=y, **kwargs)""", "assert m.B().x == 0.5", "non-default argument follows", ""),
    "stand_ins": ("""class Allocator:
    def __init__(self) -> None:
        self.free = 7
def free(allocator: Allocator) -> int:
    return int(allocator.free)
def derived() -> Any:
    return type("Checked", (Allocator,), {"__init__": lambda self: None, "__getattr__": lambda self, name: 7})""",
                           "assert m.free(m.derived()()) == 7", "Error", ""),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("rule", FAULTS)
def test_each_rule_is_still_needed(rule, tmp_path):
    """Where this fails, mypyc has got better, and the rule can go."""
    source, use, fault, left = FAULTS[rule]
    assert fault in outcome(tmp_path / "as it is", HEAD + source + "\n", use)
    other = {"stand_ins": "open_classes"}.get(rule)
    if other:  # what the fault needs beside it
        opened = HEAD.replace("Any\n", "Any\n\nfrom mypy_extensions import mypyc_attr\n")
        text = source.replace("class Alloc", "@mypyc_attr(allow_interpreted_subclasses=True)\nclass Alloc")
        assert fault in outcome(tmp_path / "opened", opened + text + "\n", use)
    said = outcome(tmp_path / "adapted", compiled.adapted(HEAD + source + "\n"), use)
    assert left in said
    assert bool(said) == bool(left), said


def outcome(folder: Path, source: str, use: str) -> str:
    """What compiling a module, or using it, says of a fault; empty = nothing."""
    folder.mkdir()
    (folder / "m.py").write_text(source)
    run = f"import gc, sys, weakref; sys.path.insert(0, 'built'); import m; assert m.__file__.endswith('.so'); {use}"
    for code in (compiled.BUILD.format(files=["m.py"]), run):
        done = subprocess.run((sys.executable, "-c", code), cwd=folder, capture_output=True, text=True)
        if done.returncode:
            return f"{done.stdout}{done.stderr} ended by {-done.returncode}"
    return ""
