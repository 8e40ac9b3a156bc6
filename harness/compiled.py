"""The replay loop compiled: `python -m harness compile` builds the same sources with mypyc, and runs use what was built.

Nothing else changes: no second implementation, the same results to the last digit. What was built is found by a digest
of its sources, so that it is used only as long as none of them has changed; without it Python runs them as ever.
Needs mypy (it comes with the `dev` extra) and a C compiler.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.errors import HarnessError

ROOT = Path(__file__).parents[1]
PACKAGES = ("allocators", "schedulers", "harness", "kernels")  # mypyc looks at all that is imported
MODULES = (
    *("allocators/" + name for name in ("books", "base", "block_pool", "forks", "host", "paged")),
    *("schedulers/" + name for name in ("request", "content", "group", "lengths", "policy", "reservation", "base",
                                        "continuous")),
    *("harness/" + name for name in ("jump", "replayer", "metrics/gaps", "metrics/recorder", "runner/base",
                                     "runner/simulated", "runner/latency/base", "runner/latency/roofline",
                                     "runner/latency/weights")),
)  # fmt: skip
SETUP = """
from mypyc.build import mypycify
from setuptools import setup
setup(name="kvlab-compiled", packages=[], ext_modules=mypycify(["--ignore-missing-imports", *{files}], opt_level="3"))
"""


def built() -> Path:
    """The folder of what was, or would be, built from the sources as they are, for this Python."""
    digest = hashlib.sha256(sys.version.encode())
    for module in MODULES:
        digest.update((ROOT / f"{module}.py").read_bytes())
    return ROOT / "harness" / "__pycache__" / f"compiled-{digest.hexdigest()[:16]}"


def use() -> bool:
    """Let imports find the compiled modules, if they are built and none was imported yet; whether they do."""
    folder = built()
    names = [module.replace("/", ".") for module in MODULES]
    if os.environ.get("KVLAB_COMPILED") == "0" or not (folder / "complete").exists():
        return False
    if any(name in sys.modules for name in names):
        return False
    sys.path.append(str(folder))  # for the library that the modules share
    for package in sorted({name.rpartition(".")[0] for name in names}):
        importlib.import_module(package).__path__.insert(0, str(folder / package.replace(".", "/")))
    return True


def build() -> Path:
    """Compile; the folder. What was built from older sources is removed.

    Raises:
        HarnessError: mypy or a C compiler is missing, or it fails; the end of its output is in the message.
    """
    folder = built()
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        for package in PACKAGES:
            shutil.copytree(ROOT / package, work / package, ignore=shutil.ignore_patterns("__pycache__"))
        for module in MODULES:
            file = work / f"{module}.py"
            file.write_text(open_to_subclasses(file.read_text()))
        (work / "setup.py").write_text(SETUP.format(files=[f"{module}.py" for module in MODULES]))
        command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise HarnessError(f"mypyc failed; it needs mypy and a C compiler:\n{(done.stdout + done.stderr)[-2000:]}")
        for old in folder.parent.glob("compiled-*"):
            shutil.rmtree(old)
        shutil.copytree(work / "built", folder)
    (folder / "complete").touch()
    return folder


def open_to_subclasses(source: str) -> str:
    """`source` with its classes marked so that plug-ins in plain Python can be derived from them, and exceptions plain."""
    head, rest = source.split("from __future__ import annotations\n", 1)
    rest = re.sub(r"^(@dataclass.*\n)?(?=class (\w+)(\((.*)\))?:)", _mark, rest, flags=re.MULTILINE)
    return f"{head}from __future__ import annotations\n\nfrom mypy_extensions import mypyc_attr\n{rest}"


def _mark(found: re.Match[str]) -> str:
    bases = found[4] or ""
    if "NamedTuple" in bases or "Protocol" in bases:
        return found[0]
    mark = "native_class=False" if "Error" in found[2] else "allow_interpreted_subclasses=True"
    return f"@mypyc_attr({mark})\n{found[0]}"
