"""Every command in every README can be composed: keys, groups and experiments that it names exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.console.commands import COMMANDS
from harness.tasks.claims import composed
from tests.command import command

ROOT = Path(__file__).resolve().parents[1]
PLACEHOLDERS = {"FILE": "a.csv", "DIR": "somewhere"}


def commands() -> list[str]:
    """What stands after `python -m harness` in the bash blocks of the README files."""
    found = []
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/README.md")]):
        for block in re.findall(r"```bash\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.search(r"python -m harness(?: (?P<words>.*))?$", line.split("   #")[0].strip().rstrip('"'))
                if match and "$(" not in line:
                    found.append(match["words"] or "")
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("words", commands())
def test_a_command_of_a_readme_composes(words: str) -> None:
    parts = shlex.split(words, comments=True)
    if parts and parts[0] in COMMANDS:
        return
    parts = [part for part in parts if part not in ("-m", "--multirun", "--help", "--cfg", "job")]
    for part in parts:
        assert "=" in part, part
    single = [re.sub(r"=([^\[{]*?),.*", r"=\1", part) for part in parts]  # the first of the values that are swept
    composed([re.sub(r"\b(FILE|DIR)\b", lambda word: PLACEHOLDERS[word[0]], part) for part in single])


def test_the_readme_fits_one_sitting() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140


# ---- those that run in seconds are run, the others are `slow`; servers and the compiler have tests of their own ---

ELSEWHERE = (
    "server.url",
    "experiment=validate",
    "device.tables",
    "experiment=calibrate",
    "hydra/launcher",
    "resume",
)
QUICK = ("inspect FILE", "-m device=simulated system=orca_max,vllm")
FEW = "workload.num_requests=6"
RUN = [pytest.param(words, marks=() if words in QUICK else pytest.mark.slow) for words in commands()
       if words != "compile" and not any(part in words for part in ELSEWHERE)]  # fmt: skip
MODEL = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
         "max_position_embeddings": 2048}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what the commands name lies: a trace, a model, the README's allocator, and a run."""
    folder = tmp_path_factory.mktemp("somewhere")
    (folder / "trace.csv").write_text("arrival_time,input_len,output_len\n0.0,20,5\n0.5,10,3\n1.0,30,2\n")
    (folder / "model.json").write_text(json.dumps(MODEL))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "my_pkg.py").write_text(re.search(r"```python\n(# my_pkg.py.*?)```", readme, re.DOTALL)[1])  # type: ignore[index]
    done = command(folder, "device=simulated", "system=vllm", FEW, "hydra.run.dir=run")
    assert done.code == 0, done.err
    return folder


@pytest.mark.parametrize("words", RUN)
def test_a_command_of_a_readme_runs(words: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands but for its size and, where a model would run, the device."""
    monkeypatch.syspath_prepend(str(place))
    file = "model.json" if "model.config" in words else "trace.csv"
    words = re.sub(r"results/sweep/[AB]|DIR", "run", words).replace("FILE", file).replace("config.json", "model.json")
    parts = shlex.split(words, comments=True)
    if parts and parts[0] not in COMMANDS:
        parts = [part for part in parts if "num_requests" not in part and "compiled" not in part]
        parts += [FEW] + ["device=simulated"] * ("device=simulated" not in parts and "model.config" not in words)
    if "experiment=capacity" in words:
        parts += ["workload.duration_s=20", "search.burst=20", "search.tolerance=0.5"]
        parts.remove(FEW)
    done = command(place, *parts)
    assert done.code == 0, done.out[-500:] + done.err[-1500:]


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_completion_in_bash_knows_commands_groups_and_keys() -> None:
    script = """source harness/console/completion.bash
    try() { COMP_LINE="$1"; COMPREPLY=(); _kvlab "$PYTHON"; echo "${COMPREPLY[@]}"; }
    try 'python -m harness experiment=paged_v'; try 'python -m harness l'; try 'python other.py '"""
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env={**os.environ, "PYTHON": sys.executable}, text=True,
                          capture_output=True, check=True)  # fmt: skip
    assert done.stdout.splitlines() == ["experiment=paged_vs_static", "label= list", ""]
