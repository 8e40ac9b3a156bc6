"""The replay loop compiled: `python -m harness compile` builds the same sources with mypyc; runs use what was built.

No second implementation: the results are the same to the last digit, two to three times sooner. What was built is named
by a digest of its sources, so that it is used only while none of them has changed. Needs mypy (in the `dev` extra) and
a C compiler.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from harness.errors import HarnessError

ROOT = Path(__file__).parents[1]
HERE = ROOT / "harness" / "__pycache__"
PACKAGES = ("allocators", "schedulers", "harness", "kernels")  # all that the compiled modules import is looked at
PARTS = {
    "allocators": "books base block_pool forks host paged",
    "schedulers": "request content group lengths policy reservation base continuous",
    "harness": "clock jump replayer",
    "harness.metrics": "gaps recorder",
    "harness.runner": "base simulated",
    "harness.runner.latency": "base roofline weights",
}
MODULES = [f"{package}.{name}" for package, names in PARTS.items() for name in names.split()]
FILES = [module.replace(".", "/") + ".py" for module in MODULES]
FLAGS = "ahead block_size can_fork forks_share grows host_capacity reserve_full_isl several_answers"  # of whole classes
BUILD = """
from mypyc.build import mypycify
from setuptools import setup
setup(packages=[], ext_modules=mypycify(["--config-file=", "--ignore-missing-imports", *{files}], opt_level="3"),
      script_args=["-q", "build_ext", "--build-lib", "built"])
"""


def use() -> None:
    """Let imports find the compiled modules.

    Not where they are not built, nor from other sources, nor with `KVLAB_COMPILED=0` in the environment, nor where one
    of the modules was imported before.
    """
    folder = folder_of_sources()
    if os.environ.get("KVLAB_COMPILED") == "0" or not folder.exists() or any(name in sys.modules for name in MODULES):
        return
    sys.path.append(str(folder))  # for the library that they share
    for package in PARTS:
        importlib.import_module(package).__path__.insert(0, str(folder / package.replace(".", "/")))


def in_use() -> bool:
    """Whether this process runs the compiled modules."""
    return any(place.startswith(str(HERE / "compiled-")) for place in sys.path)


def build() -> Path:
    """Compile them, unless that is done, and remove what was built from older sources; the folder.

    Raises:
        HarnessError: there is no mypy or no C compiler, or one of them failed; the message holds the end of its output.
            Or nothing can be written beside the sources.
    """
    folder = folder_of_sources()
    if folder.exists():
        return folder
    try:
        HERE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="compiling-", dir=HERE) as work:
            _compile(Path(work))
            for old in set(HERE.glob("compiled-*")) - {folder}:
                shutil.rmtree(old, ignore_errors=True)
            (Path(work) / "built").rename(folder)  # all of it appears at once
    except OSError as error:
        if not folder.exists():  # else another process was sooner
            raise HarnessError(f"what is compiled can't be kept in {HERE}: {error}") from error
    return folder


def _compile(work: Path) -> None:
    """Build what `work / "built"` then holds."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        (work / file).write_text(adapted((work / file).read_text()))
    command = [sys.executable, "-c", BUILD.format(files=FILES)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if done.returncode:
        raise HarnessError(f"mypyc could not build the loop; it needs mypy, setuptools and a C compiler:\n"
                           f"{(done.stdout + done.stderr)[-2000:]}")  # fmt: skip


def folder_of_sources() -> Path:
    """Where the modules are, or would be, that were built from the sources as they are now, for this Python."""
    digest = hashlib.sha256(f"{sys.version} {sysconfig.get_platform()}".encode() + Path(__file__).read_bytes())
    for file in FILES:
        digest.update((ROOT / file).read_bytes())
    return HERE / f"compiled-{digest.hexdigest()[:16]}"


def adapted(source: str) -> str:
    """A module as mypyc takes it: plug-ins in plain Python can be derived from its classes, and pass for them."""
    source = re.sub(r"^(@dataclass.*\n)?class (\w+)(\(.*\))?:", _marked, source, flags=re.MULTILINE)
    source = source.replace("allocator: Allocator", "allocator: Any")  # maybe a `Checked` one, which is none
    flags = "|".join(name for name in FLAGS.split() if f"self.{name} =" not in source)
    source = re.sub(rf"\bself\.({flags})\b", r'getattr(self, "\1")', source)  # else a plug-in's class has no say
    source = re.sub(r'@abstractmethod\n( +def (\w+)\([^\n]*:\n +""".*?""")', _missing, source, flags=re.DOTALL)
    source = re.sub(r"super\(\).__init__\((?=\*args)", "Scheduler.__init__(self, ", source)  # it passes a tuple on
    imports = "from typing import Any\n\nfrom mypy_extensions import mypyc_attr\n"
    return source.replace("from __future__ import annotations\n", f"from __future__ import annotations\n\n{imports}", 1)


def _marked(found: re.Match[str]) -> str:
    decorator, name, bases = found[1] or "", found[2], found[3] or ""
    if bases in ("(NamedTuple)", "(Protocol)"):
        return found[0]
    if bases == "(ABC)":  # with it, weak references to an instance outlive it
        bases = ""
    kind = "native_class=False" if name.endswith("Error") else "allow_interpreted_subclasses=True"
    return f"@mypyc_attr({kind})\n{decorator}class {name}{bases}:"


def _missing(found: re.Match[str]) -> str:
    """An abstract method: without `ABC` it could be called, and mypyc gives it no body."""
    method, name = found[1].lstrip(), found[2]
    return f'{method}\n        raise NotImplementedError(f"{{type(self).__name__}} has no method {name}")'
