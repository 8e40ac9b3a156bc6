"""Installed, kvlab is whole and harms nobody: the wheel, both ways to install it, before and after `kernels`.

Installations go without dependencies over the environment that is there, so they need no network; the real `kernels`
package is taken where it can be had, and a wheel of the same make elsewhere.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = {"allocators", "harness", "kvlab_conformance", "kvlab_kernels", "schedulers"}
SIMULATED = ("device=simulated", "workload.num_requests=20")
ALL_OF_IT = """
import allocators.paged, harness, kvlab_conformance.allocator, kvlab_conformance.scheduler, kvlab_kernels.dispatch
import schedulers.vllm_v1
from pathlib import Path
from harness.installation import EXPERIMENTS, version
from harness.published import load
from harness.runner.latency.choose import PRESETS
assert (EXPERIMENTS / "config.yaml").is_file() and load("fig12") and any(PRESETS.glob("*.yaml"))
print(version())
"""


def run(command: list[object], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in `folder`, with nothing on PYTHONPATH but what is said."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [*map(str, command)], cwd=folder, env=inherited | environment, capture_output=True, text=True, timeout=600
    )


def done(command: list[object], folder: Path, **environment: str) -> str:
    """What it printed; it must end well."""
    result = run(command, folder, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's sources, so that building leaves nothing in it."""
    folder = tmp_path_factory.mktemp("checkout") / "kvlab"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "build", "results", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=left_out)
    stale = folder / "build" / "lib" / "kernels"
    stale.mkdir(parents=True)
    (stale / "__init__.py").write_text("# an earlier version's, which must not be packed again\n")
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path) -> Path:
    command = [sys.executable, "-m", "pip", "wheel", ".", "-q", "--no-deps", "--no-build-isolation", "-w", "dist"]
    done(command, sources)
    return next((sources / "dist").glob("kvlab-*.whl"))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_takes_no_name_that_others_use(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"} == OURS


def test_the_wheel_lacks_nothing(unpacked: Path) -> None:
    places = {"harness": "harness", "experiments": "harness/experiments", "allocators": "allocators",
              "schedulers": "schedulers", "kernels/kvlab_kernels": "kvlab_kernels",
              "tests/conformance": "kvlab_conformance"}  # fmt: skip
    for place, name in places.items():
        files = {path.relative_to(ROOT / place) for path in (ROOT / place).rglob("*")
                 if path.is_file() and "__pycache__" not in path.parts}  # fmt: skip
        assert {file for file in files if not (unpacked / name / file).is_file()} == set(), name
    assert all((unpacked / name / "py.typed").is_file() for name in OURS)


def test_an_experiment_runs_from_the_wheel_with_its_published_points(unpacked: Path, tmp_path: Path) -> None:
    """Anywhere, even in a folder of somebody else's repository, whose commit the results must not name."""
    done(["git", "init", "-q"], tmp_path)
    done(["git", "-c", "user.name=a", "-c", "user.email=b", "commit", "-q", "--allow-empty", "-m", "theirs"], tmp_path)
    shutil.copytree(unpacked, tmp_path / "site")
    command = [sys.executable, "-m", "harness", "experiment=waste_breakdown", *SIMULATED, "seed=0", "system=vllm"]
    done(command, tmp_path, PYTHONPATH=str(tmp_path / "site"))
    folder = next((tmp_path / "results" / "waste_breakdown").iterdir())
    assert len(pd.read_csv(folder / "published.csv"))
    facts = json.loads((folder / "0" / "environment.json").read_text())
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert (facts["version"], facts["commit"], facts["dirty"]) == (version[1], None, None)


# ---- environments of their own ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the Hugging Face package, or one like it."""
    folder = tmp_path_factory.mktemp("kernels")
    run([sys.executable, "-m", "pip", "download", "kernels", "-q", "--no-deps", "-d", folder], folder)
    for path in folder.glob("kernels-*.whl"):
        return path
    path = folder / "kernels-0.11.0-py3-none-any.whl"
    info = "kernels-0.11.0.dist-info"
    files = {
        "kernels/__init__.py": "__version__ = '0.11.0'\n",
        "kernels/layer.py": "x = 1\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: kernels\nVersion: 0.11.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},sha256={_digest(text.encode())},{len(text)}\n" for name, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


class Environment:
    """A virtual environment that sees the packages of the one that runs the tests, but not its kvlab."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        done([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
        self.site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
        others = [path for path in sys.path if path.endswith("site-packages")]
        (self.site / "others.pth").write_text("\n".join(others) + "\n")

    def pip(self, *arguments: object) -> None:
        done([self.python, "-m", "pip", *arguments], self.folder)

    def install(self, *what: object) -> None:
        self.pip("install", "-q", "--no-deps", "--no-build-isolation", "--no-index", *what)

    def ask(self, code: str) -> str:
        return done([self.python, "-c", code], self.folder).strip()

    def kernels_whole(self) -> bool:
        """Whether every file of `kernels` is as its wheel had it, and it is what is imported under that name."""
        record = next(self.site.glob("kernels-*.dist-info")) / "RECORD"
        for name, digest, _ in csv.reader(record.read_text().splitlines()):
            content = (self.site / name).read_bytes()
            if digest and "dist-info" not in name and digest != f"sha256={_digest(content)}":
                return False
        code = "from importlib.util import find_spec as f; print(f('kernels').origin)"
        return self.ask(code) == str(self.site / "kernels" / "__init__.py")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["kvlab", "kernels"])
@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_beside_kernels_both_are_usable(sources: Path, kernels: Path, tmp_path: Path, editable: bool, first: str
                                        ) -> None:  # fmt: skip
    """Whichever comes first, and after whichever goes."""
    environment = Environment(tmp_path)
    ours = ["-e", sources] if editable else [sources]
    for package in (first, "kernels" if first == "kvlab" else "kvlab"):
        environment.install(*(ours if package == "kvlab" else [kernels]))
    assert environment.kernels_whole()
    version = environment.ask(ALL_OF_IT)
    headline = ["-m", "harness", "experiment=paged_vs_static", *SIMULATED, "system=vllm,orca_max"]
    done([environment.python, *headline], tmp_path)
    real = ["-m", "harness", "device=cpu", "device.threads=1", "workload.num_requests=2", "workload.fit=scale",
            "max_model_len=64", "kv_slots=256", "hydra.run.dir=real"]  # fmt: skip
    done([environment.python, *real], tmp_path)
    assert json.loads((tmp_path / "real" / "environment.json").read_text())["version"] == version
    environment.pip("uninstall", "-q", "-y", first)
    if first == "kernels":
        assert environment.ask(ALL_OF_IT) == version
        environment.pip("uninstall", "-q", "-y", "kvlab")
    else:
        assert environment.kernels_whole()
    code = f"from importlib.util import find_spec as f; print([n for n in {sorted(OURS)} if f(n) and f(n).origin])"
    assert environment.ask(code) == "[]"  # what numba has cached in a folder may stay


@pytest.mark.slow
def test_what_an_author_of_plug_ins_needs_comes_with_the_wheel(wheel: Path, tmp_path: Path) -> None:
    """The suites to inherit, and types."""
    environment = Environment(tmp_path)
    environment.install(wheel)
    code = re.search(r"```python\n# my_pkg.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    (tmp_path / "my_pkg.py").write_text(code[1])
    (tmp_path / "test_mine.py").write_text(
        "from kvlab_conformance.allocator import AllocatorConformance\nfrom my_pkg import TwoSizes\n\n\n"
        "class TestMine(AllocatorConformance):\n"
        "    def make(self, capacity, max_model_len):\n        return TwoSizes(capacity, max_model_len, short=2)\n"
    )
    done([environment.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_mine.py"], tmp_path)
    (tmp_path / "typed.py").write_text(
        "from allocators.base import Allocator\nfrom schedulers.base import Scheduler\n\n"
        "reveal_type(Allocator.footprint)\nreveal_type(Scheduler.schedule)\n"
    )
    said = run([environment.python, "-m", "mypy", "--cache-dir", tmp_path / "cache", "typed.py"], tmp_path).stdout
    assert "def (self: allocators.base.Allocator, tokens: int) -> int | None" in said, said
    assert "def (self: schedulers.base.Scheduler, now: int) -> schedulers.request.Batch" in said, said


@pytest.mark.slow
def test_a_checkout_that_was_never_installed_runs(sources: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    assert done([environment.python, "-c", ALL_OF_IT.replace("kvlab_conformance", "tests.conformance")], sources)
