"""The compiled replay loop gives what the sources give, and is used only for the sources it was built from."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from allocators.base import Allocator
from harness import compiled
from harness.errors import HarnessError
from schedulers.base import Scheduler

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = "vllm,paged_cached,radix,orca_max,buddy_pow2,first_fit_compacting,static_contiguous"
RUNS = {
    "systems": (f"system={SYSTEMS}", "workload.num_requests=300", "kv_slots=6000", "-m"),
    "v1": ("scheduler=vllm_v1", "workload.num_requests=300", "kv_slots=6000"),
    "swapping": ("scheduler.preemption=swap", "allocator.host_slots=4000", "workload.num_requests=99", "kv_slots=3000"),
    "beams": ("workload.num_requests=60", "workload.n=3", "workload.use_beam_search=true", "kv_slots=6000"),
    "checked": ("workload.num_requests=20", "kv_slots=2000", "debug=true"),
    "derived": ("scheduler._target_=plug_in.Lone", "allocator._target_=plug_in.Fours", "workload.num_requests=99",
                "kv_slots=3000", "scheduler.chunked_prefill=true", "scheduler.max_num_batched_tokens=99"),
}  # fmt: skip
PLUG_IN = """
from allocators.base import Allocator
from schedulers.continuous import Continuous


class Fours(Allocator):
    block_size = 4
    grows = True

    def __init__(self, capacity, max_model_len):
        super().__init__(capacity, max_model_len)
        self.unused, self.blocks = list(range(capacity // 4)), {}

    def footprint(self, tokens):
        return -(-tokens // 4) * 4

    def place(self, holder, tokens):
        self.blocks[holder.row] = []
        return self.widen(holder, tokens) or None

    def widen(self, holder, tokens):
        blocks = self.blocks[holder.row]
        more = -(-tokens // 4) - len(blocks)
        if more > len(self.unused):
            return 0
        new = [self.unused.pop() for _ in range(more)]
        self.set_row(holder, len(blocks), new)
        blocks += new
        return 4 * more

    def release(self, holder):
        self.unused += self.blocks.pop(holder.row)

    def spans(self, holder):
        return [(4 * block, 4) for block in self.blocks[holder.row]]


class Lone(Continuous):
    several_answers = False
    reserve_full_isl = False


def half(request, max_model_len):
    return request.prompt_len / 2


class Idle(Continuous.__base__):
    pass


class Leaking(Fours):
    release = Allocator.release
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The packages and a plug-in at another place, so that nothing compiled is left where they are."""
    folder = tmp_path_factory.mktemp("the sources")
    for package in (*compiled.PACKAGES, "experiments"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "plug_in.py").write_text(PLUG_IN)
    return folder


@pytest.fixture(scope="module")
def built(copy, tmp_path_factory):
    """The same, compiled."""
    folder = shutil.copytree(copy, tmp_path_factory.mktemp("compiled") / "the sources")
    done = harness(folder, tmp_path_factory.mktemp("elsewhere"), "compile")
    assert done.returncode == 0, done.stderr
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
def test_the_compiled_loop_gives_the_same(built, tmp_path):
    for name, arguments in RUNS.items():
        place = f"hydra.{'sweep' if name == 'systems' else 'run'}.dir={name}"
        for kind, switch in (("plain", "0"), ("compiled", "1")):
            done = harness(built, tmp_path / kind, "device=simulated", place, *arguments, KVLAB_COMPILED=switch)
            assert done.returncode == 0, done.stderr
            facts = [json.loads(path.read_text()) for path in (tmp_path / kind / name).rglob("environment.json")]
            assert {fact["compiled"] for fact in facts} == {kind == "compiled"}
        assert results(tmp_path / "plain" / name) == results(tmp_path / "compiled" / name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("scheduler=vllm_v1", "VllmV1 serves requests that want a single answer"),
        ("scheduler._target_=plug_in.Lone", "Lone serves requests that want a single answer"),
        ("scheduler._target_=plug_in.Idle", "Idle has no method schedule"),
        ("allocator._target_=plug_in.Leaking", "Leaking has no method release"),
        ("allocator.block_size=16.5", "block_size=16.5"),
        ("scheduler.watermark=abc", "watermark='abc'"),
        ("reservation._target_=plug_in.half", "KVLAB_COMPILED=0"),
    ],
)
def test_a_mistake_is_named(built, tmp_path, argument, answer):
    done = harness(built, tmp_path, "device=simulated", "workload.num_requests=9", "workload.n=2", argument)
    assert done.returncode == 1
    assert answer in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_without_a_compiler_it_says_so(copy, tmp_path):
    done = harness(copy, tmp_path, "compile", CC="no-such-compiler")
    assert done.returncode == 2
    assert "error: mypyc could not build the loop; it needs mypy, setuptools and a C compiler" in done.stderr
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
    assert "        self.grows = growth > 0\n" in compiled.adapted("        self.grows = growth > 0\n")


def test_what_a_class_says_of_itself_is_asked_of_its_plug_in():
    """Compiled code would look where only what an instance was given is."""
    said = {
        name
        for base in (Allocator, Scheduler)
        for name, value in vars(base).items()
        if name[0] != "_" and not callable(value) and not isinstance(value, property)
    }
    assert said == set(compiled.FLAGS.split())
    assert compiled.adapted("        return self.grows or self.grown") == (
        '        return getattr(self, "grows") or self.grown'
    )


def test_a_method_that_a_plug_in_lacks_is_named():
    source = 'class D(ABC):\n    @abstractmethod\n    def one(self) -> int:\n        """One\n\n        line."""\n'
    adapted = compiled.adapted(source)
    assert "abstractmethod" not in adapted
    space = {"mypyc_attr": lambda **_: lambda cls: cls}
    exec(adapted, space)
    with pytest.raises(NotImplementedError, match="D has no method one"):
        space["D"]().one()


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "HERE", tmp_path / "__pycache__")
    return tmp_path / "__pycache__"


def names(place: Path) -> list[str]:
    return sorted(path.name for path in place.iterdir())


def test_what_is_compiled_appears_at_once_and_once(place, monkeypatch):
    """Only when all is done, instead of what was built before; nothing is left of a build that failed."""
    built = compiled.folder_of_sources().name

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
        (compiled.folder_of_sources() / "theirs").mkdir(parents=True)

    monkeypatch.setattr(compiled, "_compile", compile_)
    assert names(compiled.build()) == ["theirs"]
    assert names(place) == [compiled.folder_of_sources().name]


def test_a_place_where_nothing_can_be_written_is_named(place):
    place.write_text("")
    with pytest.raises(HarnessError, match=r"can't be kept in .*__pycache__"):
        compiled.build()
