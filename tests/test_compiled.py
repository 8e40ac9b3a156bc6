"""The compiled replay loop gives what the sources give, and is used only for the sources it was built from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import compiled

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = "vllm,paged_cached,radix,orca_max,buddy_pow2,first_fit_compacting,static_contiguous"
RUNS = {
    "systems": (f"system={SYSTEMS}", "workload.num_requests=300", "kv_slots=6000", "-m"),
    "v1": ("scheduler=vllm_v1", "workload.num_requests=300", "kv_slots=6000"),
    "swapping": ("scheduler.preemption=swap", "allocator.host_slots=4000", "workload.num_requests=99", "kv_slots=3000"),
    "beams": ("workload.num_requests=60", "workload.n=3", "workload.use_beam_search=true", "kv_slots=6000"),
    "checked": ("workload.num_requests=20", "kv_slots=2000", "debug=true"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages at another place, so that nothing compiled is left where they are."""
    folder = tmp_path_factory.mktemp("sources")
    for package in (*compiled.PACKAGES, "experiments"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def harness(sources: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(sources), **environment}
    command = (sys.executable, "-m", "harness", *arguments)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def results(folder: Path) -> dict[str, bytes]:
    """What every job found out, by file."""
    names = ("requests.csv", "steps.csv", "comparison.csv")
    files = {str(path.relative_to(folder)): path.read_bytes() for name in names for path in folder.rglob(name)}
    assert files
    return files


@pytest.mark.slow
def test_the_compiled_loop_gives_the_same(copy, tmp_path):
    built = harness(copy, tmp_path, "compile")
    assert built.returncode == 0, built.stderr
    for name, arguments in RUNS.items():
        place = f"hydra.{'sweep' if name == 'systems' else 'run'}.dir={name}"
        for kind, switch in (("plain", "0"), ("compiled", "1")):
            done = harness(copy, tmp_path / kind, "device=simulated", place, *arguments, KVLAB_COMPILED=switch)
            assert done.returncode == 0, done.stderr
            facts = [json.loads(path.read_text()) for path in (tmp_path / kind / name).rglob("environment.json")]
            assert {fact["compiled"] for fact in facts} == {kind == "compiled"}
        assert results(tmp_path / "plain" / name) == results(tmp_path / "compiled" / name)


@pytest.mark.slow
def test_without_a_compiler_it_says_so(copy, tmp_path):
    done = harness(copy, tmp_path, "compile", CC="no-such-compiler")
    assert done.returncode == 2
    assert "error: mypyc could not build the loop; it needs mypy and a C compiler" in done.stderr
    assert "no-such-compiler" in done.stderr


def test_what_was_built_from_other_sources_is_not_used(copy, tmp_path):
    """A line more in one of them, or in what adapts them, and it is another folder."""
    ask = "from harness import compiled; print(compiled.folder_of_sources().name)"

    def folder() -> str:
        command = (sys.executable, "-c", ask)
        return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True).stdout

    names = {folder()}
    for file in (compiled.FILES[0], "harness/compiled.py"):
        source = (copy / file).read_text()
        (copy / file).write_text(source + "\n# another line\n")
        names.add(folder())
        (copy / file).write_text(source)
    assert len(names | {folder()}) == 3


def test_plug_ins_can_be_derived_from_compiled_classes():
    source = (
        "from __future__ import annotations\n@dataclass(slots=True)\nclass A(B):\n    x: int\nclass C(NamedTuple):\n"
    )
    adapted = compiled.adapted(source + "class AnError(RuntimeError):\nclass D(ABC):\n")
    assert "@mypyc_attr(allow_interpreted_subclasses=True)\n@dataclass(slots=True)\nclass A(B):" in adapted
    assert "\nclass C(NamedTuple):" in adapted
    assert "_attr(allow_interpreted_subclasses=True)\nclass C" not in adapted
    assert "@mypyc_attr(native_class=False)\nclass AnError(RuntimeError):" in adapted
    assert "\nclass D:" in adapted
