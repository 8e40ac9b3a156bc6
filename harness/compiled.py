"""The simulation compiled: `python -m harness compile` builds it with mypyc, and `simulation.compiled=true` runs that.

It is built from the same sources: no second implementation, the same results to the last digit, two to three times
sooner. What was built is named by a digest of them, so that it is used only while none has changed. It needs mypy (in
the `dev` extra) and a C compiler. A job with a plug-in must do without: a plug-in is not compiled, and compiled classes
don't hear all that a class derived from them says.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from harness.errors import HarnessError

ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "kvlab"
# Beside the sources, or in a folder of this installation's own where that can't be written to.
PLACES = (ROOT / "harness" / "__pycache__", CACHE / hashlib.sha256(bytes(ROOT)).hexdigest()[:8])
PACKAGES = ("allocators", "schedulers", "harness")  # all that the compiled modules import is looked at
PARTS = {
    "allocators": "base block_pool books buddy compaction contents contiguous dual_pool forks group_pages holes "
    "host jenga keyed_pool layout ledger paged radix radix_tree recount renamed split virtual vllm_books vllm_chunks "
    "vllm_groups vllm_held vllm_hits vllm_hybrid vllm_keys vllm_needs vllm_pool",
    "schedulers": "base content continuous group guaranteed_no_evict ideal lengths max_utilization past_future "
    "orders quiet rebuild request reservation static static_bucketed vllm_v1",
    "harness.replay": "clock engine jump replayer",
    "harness.metrics": "gaps jump recorder",
    "harness.runner": "base simulated",
    "harness.runner.latency": "base roofline",
    "harness.layout": "weights",
}
MODULES = [f"{package}.{name}" for package, names in PARTS.items() for name in names.split()]
FILES = [module.replace(".", "/") + ".py" for module in MODULES]
# Only these modules: the types of what other packages and modules hold take minutes and gigabytes, and help nothing.
BUILD = """
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--no-site-packages", "--ignore-missing-imports", "--follow-imports=silent"]
setup(packages=[], ext_modules=mypycify([*options, *{files}], opt_level="3"),
      script_args=["-q", "build_ext", "--build-lib", "built"])
"""


def use() -> None:
    """Let this process import the compiled modules, where they are built and none of them was imported before."""
    if any(name in sys.modules for name in MODULES):
        return
    folder = built()
    if folder:
        sys.path.append(str(folder))  # for the library that they share
        for package in PARTS:
            module = importlib.import_module(package)
            module.__path__ = [str(folder / package.replace(".", "/")), *module.__path__]


def in_use() -> bool:
    """Whether this process runs the compiled modules."""
    return any(entry.startswith(str(place / "compiled-")) for entry in sys.path for place in PLACES)


def check(cfg: DictConfig, part: Any) -> None:
    """See that a job runs compiled if `cfg` says so and else not, and `part` too, its scheduler's or allocator's class.

    Raises:
        HarnessError: it is not so; the message says what to do.
    """
    key = "simulation.compiled"
    if not OmegaConf.select(cfg, key):
        if in_use():
            raise HarnessError(f"{key}=false: an earlier job of the sweep runs compiled; set it for all of them")
        return
    if part.__module__ not in MODULES:
        name = f"{part.__module__}.{part.__qualname__}"
        raise HarnessError(f"{key}=true: {name} is not compiled; leave {key}=true away")
    if in_use():  # whatever became of the sources since
        return
    if built():
        raise HarnessError(f"{key}=true: an earlier job of the sweep runs without; set it for all")
    raise HarnessError(
        f"{key}=true: nothing is built from the sources as they are; first run `python -m harness compile`"
    )


def build() -> Path:
    """Compile them, unless that is done, and remove what was built from older sources; the folder.

    Raises:
        HarnessError: there is no mypy or no C compiler, or one of them failed; the message holds the end of its output.
            Or nothing can be written in any of `PLACES`.
    """
    refused = []
    for place in PLACES:
        folder = built()
        try:
            return folder or _build(place)
        except OSError as error:
            refused.append(f"{place}: {error}")
    folder = built()  # another process was sooner, maybe
    if folder is None:
        raise HarnessError(f"what is compiled can't be kept in {', nor in '.join(refused)}")
    return folder


def _build(place: Path) -> Path:
    folder = place / name_of_sources()
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="compiling-", dir=place) as work:
        _compile(Path(work))
        for old in set(place.glob("compiled-*")) - {folder}:
            shutil.rmtree(old, ignore_errors=True)
        (Path(work) / "built").rename(folder)  # all of it appears at once
    return folder


def built() -> Path | None:
    """Where the modules are that were built from the sources as they are now; None = nowhere."""
    name = name_of_sources()
    return next((place / name for place in PLACES if (place / name).exists()), None)


def name_of_sources() -> str:
    """Of the folder of what is built from the sources as they are now, for this Python."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode() + Path(__file__).read_bytes())
    for file in FILES:
        digest.update((ROOT / file).read_bytes())
    return f"compiled-{digest.hexdigest()[:16]}"


def _compile(work: Path) -> None:
    """Build what `work / "built"` then holds."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        (work / file).write_text(adapted((work / file).read_text(encoding="utf-8")), encoding="utf-8")
    command = [sys.executable, "-c", BUILD.format(files=FILES)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise HarnessError(f"mypyc could not build the simulation; it needs mypy, setuptools and a C compiler:\n"
                           f"{(done.stdout + done.stderr)[-2000:]}")  # fmt: skip


def adapted(source: str) -> str:
    """A module as mypyc takes it.

    What differs can't stand in the sources: it is plain Python that mypyc (2.4) compiles to something else, or can't.
    Each rule is a function below that says what; `tests/test_mypyc_faults.py` shows for each that it is still needed.
    """
    tree, text = ast.parse(source), source.encode()
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
    edits = [(starts[where.line - 1] + where.column, starts[where.end_line - 1] + where.end_column, said.encode())
             for rule in RULES for where, said in rule(tree)]  # fmt: skip
    for begin, end, said in sorted(edits, reverse=True):
        text = text[:begin] + said + text[end:]
    return text.decode()


class Place(NamedTuple):
    """A piece of a source; columns are bytes."""

    line: int
    column: int
    end_line: int
    end_column: int

    @classmethod
    def of(cls, node: Any) -> Place:
        return cls(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)

    @classmethod
    def before(cls, node: Any) -> Place:
        return cls(node.lineno, node.col_offset, node.lineno, node.col_offset)


Edits = Iterator[tuple[Place, str]]


def names_for_rules(tree: ast.Module) -> Edits:
    """What the other rules write is imported."""
    first = next(node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__")
    after = Place(first.lineno, first.end_col_offset or 0, first.lineno, first.end_col_offset or 0)
    yield after, "\n\nfrom typing import Any\n\nfrom mypy_extensions import mypyc_attr"


def open_classes(tree: ast.Module) -> Edits:
    """Instances of a class derived from a compiled one are refused unless a decorator of mypyc's says so: a plug-in is
    one. An exception of Python's own can't be the base of a native class. The sources would have to import mypyc's
    package to be run at all, and have the decorator on each class."""
    for node in _classes(tree):
        kind = "native_class=False" if _base(node).endswith("Error") else "allow_interpreted_subclasses=True"
        yield Place.before(node), f"@mypyc_attr({kind})\n"


def no_abstract_base(tree: ast.Module) -> Edits:
    """A weak reference to an instance of a compiled class with `ABC` as its base ends the process; without, none can be
    made."""
    for node in _classes(tree):
        yield from ((Place.of(base), "") for base in node.bases if ast.unparse(base) == "ABC")


def base_by_name(tree: ast.Module) -> Edits:
    """`super().__init__(*args)` hands the tuple on as one argument."""
    for node in _classes(tree):
        for call in ast.walk(node):
            if (
                isinstance(call, ast.Call)
                and ast.unparse(call.func) == "super().__init__"
                and any(isinstance(one, ast.Starred) for one in call.args)
            ):
                yield Place.of(call.func), f"{_base(node)}.__init__"
                yield Place.before(call.args[0]), "self, "


def plain_floats(tree: ast.Module) -> Edits:
    """Behind `*args` mypyc can't write down a float's default: "non-default argument follows default argument"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments) and node.vararg:
            for one, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
                if default and one.annotation and ast.unparse(one.annotation) == "float":
                    yield Place.of(one.annotation), "Any"


def stand_ins(tree: ast.Module) -> Edits:
    """An allocator may be a `Checked` one, which hands on each attribute that it is asked for, and a scheduler several
    engines in `Lockstep`: where the type is known, compiled code asks for none, but reads where a native one would lie.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in ("allocator", "scheduler") and node.annotation:
            yield Place.of(node.annotation), "Any"


RULES = (names_for_rules, open_classes, no_abstract_base, base_by_name, plain_floats, stand_ins)


def _classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Those that mypyc makes native."""
    yield from (node for node in tree.body
                if isinstance(node, ast.ClassDef) and _base(node) not in ("NamedTuple", "Protocol"))  # fmt: skip


def _base(node: ast.ClassDef) -> str:
    return ast.unparse(node.bases[0]) if node.bases else ""
