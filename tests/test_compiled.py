"""What is compiled gives what the sources give, is used only for those it was built from, and by no plug-in."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import compiled
from harness.errors import HarnessError
from tests.validate.made_up import ROWS, write_profile, write_run

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = (
    "vllm,paged_cached+on_demand,radix,orca_max,buddy+pow2,first_fit_compacting+exact,first_fit_growing+on_demand,"
    "static+contiguous+max_model_len,vattention"
)
SCHEDULERS = (
    "vllm_v1,static_bucketed,guaranteed_no_evict,max_utilization,past_future,rebuild,ideal,sarathi,shortest_predicted"
)
RUNS = {
    "systems": (f"system={SYSTEMS}", "workload.num_requests=200", "kv_slots=6000", "-m"),
    "schedulers": (f"scheduler={SCHEDULERS}", "workload.num_requests=200", "kv_slots=6000", "-m"),
    "swapping": ("scheduler.preemption=swap", "allocator.host_slots=4000", "workload.num_requests=99", "kv_slots=3000"),
    "beams": ("workload.num_requests=60", "workload.n=3", "workload.use_beam_search=true", "kv_slots=6000"),
    "ahead": ("scheduler=vllm_v1", "simulation.async_scheduling=true", "workload.num_requests=60", "kv_slots=6000"),
    "checked": ("workload.num_requests=20", "kv_slots=2000", "debug=true", "memory_map=true"),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages at another place, so that nothing compiled is left where they are."""
    folder = tmp_path_factory.mktemp("the sources")
    for package in (*compiled.PACKAGES, "experiments"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "plug_in.py").write_text("from allocators.paged import Paged\nclass Mine(Paged):\n    pass\n")
    return folder


@pytest.fixture(scope="module")
def built(copy, tmp_path_factory):
    """The same, compiled."""
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc"))):
        pytest.skip("there is no C compiler")
    folder = shutil.copytree(copy, tmp_path_factory.mktemp("compiled") / "the sources")
    done = harness(folder, tmp_path_factory.mktemp("elsewhere"), "compile")
    assert done.returncode == 0, done.stderr
    return folder


def harness(sources: Path, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(sources), **environment}
    command = (sys.executable, "-m", "harness", *arguments)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def results(folder: Path) -> list[bytes]:
    """What every job found out."""
    names = ("requests.csv", "steps.csv", "moves.csv", "events.csv", "memory_map.parquet")
    found = [path.read_bytes() for name in names for path in sorted(folder.rglob(name))]
    assert found
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_it_gives_the_same(built, tmp_path, name):
    for wanted in (False, True):
        place = tmp_path / str(wanted)
        done = harness(built, place, "device=simulated", f"simulation.compiled={wanted}",
                       f"hydra.{'sweep' if '-m' in RUNS[name] else 'run'}.dir=jobs", *RUNS[name])  # fmt: skip
        assert done.returncode == 0, done.stderr
        facts = [json.loads(path.read_text()) for path in place.rglob("environment.json")]
        assert {fact["compiled"] for fact in facts} == {wanted}
    assert results(tmp_path / "False") == results(tmp_path / "True")


@pytest.mark.slow
def test_engines_in_lockstep_give_the_same(built, tmp_path):
    """Compiled schedulers and engines under `harness.validate.lockstep`, which is not compiled."""
    rows = [{**ROWS[0], "request_id": f"r{i}", "input_toks": 5 + 7 * i % 60, "output_toks": 2 + 3 * i % 17,
             "queued_ts": 5.0 + 1e-4 * i, "first_token_ts": 6.0, "last_token_ts": 7.0} for i in range(40)]  # fmt: skip
    run, tables = write_run(tmp_path / "run", rows), write_profile(tmp_path / "tables")
    told = []
    for wanted in (False, True):
        done = harness(built, tmp_path / str(wanted), "experiment=validate", f"validate.measured={run}",
                       f"validate.profile={tables}", "validate.data_parallel=2", f"simulation.compiled={wanted}",
                       "hydra.run.dir=job")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / str(wanted) / "job/environment.json").read_text())["compiled"] == wanted
        told.append(results(tmp_path / str(wanted)))
    assert told[0] == told[1]


@pytest.mark.slow
def test_no_key_of_a_configuration_is_lost(built):
    """`build_scheduler` hands over what the signature of a class names: compiled, it must name the same."""
    told = (
        "import sys; from harness import compiled; compiled.use(); assert compiled.in_use(); sys.path.insert(0, {!r})"
    )
    ask = told.format(str(ROOT)) + "; from tests.test_compiled import signatures; print(signatures())"
    command = (sys.executable, "-c", ask)
    done = subprocess.run(
        command, cwd=built, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(built)}
    )
    assert done.stdout.strip() == str(signatures()), done.stderr


def signatures() -> dict[str, list[str]]:
    """Names and defaults of what the compiled classes are made of."""
    parts = [
        importlib.import_module(name) for name in compiled.MODULES if name.startswith(("allocators", "schedulers"))
    ]
    classes = {cls.__name__: cls for part in parts for cls in vars(part).values() if inspect.isclass(cls)}
    ours = {name: cls for name, cls in classes.items() if cls.__module__ in compiled.MODULES and name[0] != "_"}
    return {
        name: [f"{p.name}={p.default}" for p in inspect.signature(cls).parameters.values()]
        for name, cls in sorted(ours.items())
        if cls.__name__.lower() == cls.__module__.rpartition(".")[2].replace("_", "")
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "code", "answer"),
    [
        ("allocator._target_=plug_in.Mine", 1, "plug_in.Mine is not compiled; leave simulation.compiled=true away"),
        ("allocator.block_size=16.5", 2, "block_size=16.5"),
        ("device=cpu", 2, "simulation.compiled=true needs a simulated device"),
    ],
)
def test_a_mistake_is_named(built, tmp_path, argument, code, answer):
    done = harness(built, tmp_path, "device=simulated", "simulation.compiled=true", "workload.num_requests=9", argument)
    assert done.returncode == code
    assert answer in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_a_compiler_it_says_so(copy, tmp_path):
    done = harness(copy, tmp_path, "compile", CC="no-such-compiler")
    assert done.returncode == 2
    assert "error: mypyc could not build the simulation; it needs mypy, setuptools and a C compiler" in done.stderr
    assert "no-such-compiler" in done.stderr


def test_where_nothing_is_built_it_says_so(copy, tmp_path):
    done = harness(copy, tmp_path, "device=simulated", "simulation.compiled=true")
    assert done.returncode == 1
    assert "nothing is built from the sources as they are; first run `python -m harness compile`" in done.stderr


def test_what_was_built_from_other_sources_is_not_used(copy):
    """A line more in one of them, or in what adapts them, and it is another folder."""
    ask = "from harness import compiled; print(compiled.name_of_sources())"

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


def test_every_allocator_and_scheduler_is_among_them():
    tools = {"allocators.checker", "allocators.shadow"}  # for tests
    files = [path for name in ("allocators", "schedulers") for path in (ROOT / name).glob("[a-z]*.py")]
    names = {f"{path.parent.name}.{path.stem}" for path in files} - tools
    assert names == {name for name in compiled.MODULES if not name.startswith("harness")}


def test_sources_are_adapted():
    source = """from __future__ import annotations

@dataclass(slots=True)  # as it is
class A(B):
    def __init__(self, *args, share: float = 0.5, **kwargs):
        super().__init__(*args, share=share)
    def use(self, allocator: Allocator | None = None, part: float = 0.5): ...
class C(NamedTuple):
    x: int
class No(RuntimeError): ...
class D(ABC): ...
"""
    expected = """from __future__ import annotations

from typing import Any

from mypy_extensions import mypyc_attr

@dataclass(slots=True)  # as it is
@mypyc_attr(allow_interpreted_subclasses=True)
class A(B):
    def __init__(self, *args, share: Any = 0.5, **kwargs):
        B.__init__(self, *args, share=share)
    def use(self, allocator: Any = None, part: float = 0.5): ...
class C(NamedTuple):
    x: int
@mypyc_attr(native_class=False)
class No(RuntimeError): ...
@mypyc_attr(allow_interpreted_subclasses=True)
class D(): ...
"""
    assert compiled.adapted(source) == expected


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "PLACES", (tmp_path / "__pycache__", tmp_path / "cache" / "kvlab"))
    return tmp_path / "__pycache__"


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_what_is_compiled_appears_at_once_and_once(place, monkeypatch):
    """Only when all is done, instead of what was built before; nothing is left of a build that failed."""
    built = compiled.name_of_sources()

    def compile_(work: Path) -> None:
        assert names(place) == ["compiled-old", work.name]
        (work / "built").mkdir()
        (work / "built" / "module").write_text("")

    def fail(work: Path) -> None:
        (work / "built").mkdir()
        raise KeyboardInterrupt

    (place / "compiled-old" / "part").mkdir(parents=True)
    monkeypatch.setattr(compiled, "_compile", fail)
    with pytest.raises(KeyboardInterrupt):
        compiled.build()
    assert names(place) == ["compiled-old"]
    monkeypatch.setattr(compiled, "_compile", compile_)
    assert compiled.build() == place / built
    assert names(place) == [built]
    assert names(place / built) == ["module"]
    monkeypatch.setattr(compiled, "_compile", fail)
    assert compiled.build() == place / built


def test_what_another_process_compiled_meanwhile_is_used(place, monkeypatch):
    def compile_(work: Path) -> None:
        (work / "built").mkdir()
        (place / compiled.name_of_sources() / "theirs").mkdir(parents=True)

    monkeypatch.setattr(compiled, "_compile", compile_)
    assert names(compiled.build()) == ["theirs"]
    assert names(place) == [compiled.name_of_sources()]


def test_where_the_sources_cannot_be_written_to_it_is_kept_in_the_users_cache(place, monkeypatch):
    place.write_text("")
    monkeypatch.setattr(compiled, "_compile", lambda work: (work / "built").mkdir())
    assert compiled.built() is None
    folder = compiled.build()
    assert folder == place.parent / "cache" / "kvlab" / compiled.name_of_sources()
    assert compiled.built() == compiled.build() == folder


def test_places_where_nothing_can_be_written_are_named(place):
    place.write_text("")
    (place.parent / "cache").write_text("")
    with pytest.raises(HarnessError, match=r"can't be kept in .*__pycache__.*, nor in .*cache/kvlab"):
        compiled.build()
