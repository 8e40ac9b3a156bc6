"""The simulation compiled: `python -m harness compile` builds it with mypyc, and `simulation.compiled=true` runs that.

It is built from the same sources: no second implementation, the same results to the last digit, two to three times
sooner. What was built is named by a digest of them, so that it is used only while none has changed. It needs mypy (in
the `dev` extra) and a C compiler. A job with a plug-in must do without: a plug-in is not compiled, and compiled classes
don't hear all that a class derived from them says.
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
from typing import Any

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
    """A module as mypyc takes it."""
    imports = "from __future__ import annotations\n\nfrom typing import Any\n\nfrom mypy_extensions import mypyc_attr\n"
    source = source.replace("from __future__ import annotations\n", imports, 1)
    source = source.replace("allocator: Allocator", "allocator: Any")  # maybe a `Checked` one, which is none
    source = re.sub(r"(\w+): float = ", r"\1: Any = ", source)  # behind *args it can't have a default
    return re.sub(
        r"^(@dataclass.*\n)?class (?s:.*?)(?=^(@dataclass.*\n)?class |\Z)", _opened, source, flags=re.MULTILINE
    )


def _opened(found: re.Match[str]) -> str:
    """A class that others in plain Python can be derived from."""
    source = found[0]
    base = re.search(r"class \w+(?:\((\w+).*\))?:", source)[1] or ""  # type: ignore[index]
    if base in ("NamedTuple", "Protocol"):
        return source
    source = source.replace("super().__init__(*args", f"{base}.__init__(self, *args")  # it hands a tuple on
    source = source.replace("(ABC):", ":", 1)  # with it, weak references to an instance outlive it
    kind = "native_class=False" if base.endswith("Error") else "allow_interpreted_subclasses=True"
    return f"@mypyc_attr({kind})\n{source}"
