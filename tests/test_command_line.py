"""The commands a user types, in a process of their own: what they write, and how they answer a mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import yaml
from omegaconf.errors import OmegaConfBaseException

from harness.console.mistakes import explained

from .command import FAST, command

ROOT = Path(__file__).resolve().parents[1]


def harness(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m harness` in `folder`, which gets the results."""
    return subprocess.run(
        (sys.executable, "-m", "harness", *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, found
    return found[0]


def test_a_single_run_writes_its_folder(tmp_path):
    done = harness(tmp_path, *FAST)
    assert done.returncode == 0, done.stderr
    job = only(tmp_path, "results/run/*")
    assert {"config.yaml", "environment.json", "summary.json", "requests.csv", "steps.csv", "workload.jsonl"} <= {
        path.name for path in job.iterdir()
    }
    summary = json.loads((job / "summary.json").read_text(), parse_constant=pytest.fail)
    assert (summary["status"], summary["finished"], summary["system"]) == ("finished", 6, "vLLM")
    assert yaml.safe_load((job / "config.yaml").read_text())["kv_slots"] == 15728


def test_an_exported_workload_replays_to_the_same_requests(tmp_path):
    assert command(tmp_path, *FAST, "hydra.run.dir=first").code == 0
    again = command(tmp_path, "device=simulated", "workload=trace", "workload.path=first/workload.jsonl",
                    "hydra.run.dir=second")  # fmt: skip
    assert again.code == 0, again.err
    assert (tmp_path / "first/requests.csv").read_bytes() == (tmp_path / "second/requests.csv").read_bytes()


@pytest.mark.slow
def test_same_seed_same_bytes_whatever_the_hash_seed(tmp_path):
    for name, hash_seed in (("one", "1"), ("two", "2")):
        assert harness(tmp_path, *FAST, f"hydra.run.dir={name}", PYTHONHASHSEED=hash_seed).returncode == 0
    assert (tmp_path / "one/requests.csv").read_bytes() == (tmp_path / "two/requests.csv").read_bytes()
    assert harness(tmp_path, *FAST, "seed=1", "hydra.run.dir=three").returncode == 0
    assert (tmp_path / "one/requests.csv").read_bytes() != (tmp_path / "three/requests.csv").read_bytes()


@pytest.mark.slow
def test_a_real_run_survives_a_package_called_kernels_and_checks_the_allocator(tmp_path):
    """`transformers` looks for a distribution of the same name as our folder."""
    fake = tmp_path / "site" / "kernels-0.11.0.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: kernels\nVersion: 0.11.0\n")
    tiny = ("workload.num_requests=3", "workload.fit=scale", "max_model_len=64", "kv_slots=256", "debug=true",
            "device.threads=1")  # fmt: skip
    done = harness(tmp_path, "device=cpu", *tiny, "hydra.run.dir=run", PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/summary.json").read_text())["finished"] == 3


def test_a_sweep_goes_on_after_a_failing_job_and_marks_it(tmp_path):
    done = command(tmp_path, *FAST, "-m", "allocator.block_size=16,3,8")
    assert done.code == 1
    sweep = only(tmp_path, "results/sweep/*")
    table = pd.read_csv(sweep / "comparison.csv")
    assert table["status"].tolist() == ["finished", "failed", "finished"]
    assert "power of two" in json.loads((sweep / "1/summary.json").read_text())["error"]
    assert (sweep / "1/traceback.txt").exists()
    assert table.loc[1, "output_throughput"] != table.loc[1, "output_throughput"]  # empty, not 0


def test_a_sweep_on_the_command_line_narrows_the_experiment(tmp_path):
    done = command(tmp_path, "experiment=paged_vs_static", *FAST, "system=vllm,orca_max")
    assert done.code == 0, done.err
    table = pd.read_csv(only(tmp_path, "results/paged_vs_static/*") / "comparison.csv")
    assert table["system"].tolist() == ["vLLM", "Orca (Max)"]


def test_the_label_tells_what_ran_not_what_a_row_was_called(tmp_path):
    done = command(tmp_path, *FAST, "system=vllm", "scheduler=static", "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "run/summary.json").read_text())["system"] == "static + paged(on_demand)"


def test_an_interrupt_keeps_what_is_finished_and_marks_the_rest(tmp_path):
    command = (sys.executable, "-m", "harness", "experiment=paged_vs_static", "device=simulated", "seed=0",
               "workload.num_requests=2000", "system=vllm,orca_max,orca_pow2,orca_oracle")  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("results/*/*/0/summary.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    table = pd.read_csv(only(tmp_path, "results/*/*/comparison.csv"))
    assert len(table) == 4
    assert table["status"].iloc[0] == "finished"
    assert table["status"].iloc[-1] in ("not run", "interrupted")


def test_an_interrupt_that_omegaconf_makes_an_error_of_is_one():
    error = OmegaConfBaseException("a container is half changed")
    error.__cause__ = AttributeError()
    error.__cause__.__context__ = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), explained(ROOT / "experiments"):
        raise error


@pytest.mark.parametrize(
    ("arguments", "answers"),
    [
        (["allocator=pagd"], ["allocator 'pagd'", "paged"]),
        (["reservation=exakt"], ["reservation 'exakt'", "exact"]),
        (["scheduler=continous"], ["scheduler 'continous'", "continuous"]),
        (["experiment=paged_vs_statik"], ["paged_vs_static"]),
        (["scheduler.max_num_sqs=3"], ["scheduler.max_num_sqs", "max_num_seqs"]),
        (["blocksize=3"], ["blocksize", "allocator.block_size"]),
        (["allocator.block_size=0"], ["block_size", "power of two", "0"]),
        (["allocator.block_size=3"], ["block_size", "power of two", "3"]),
        (["allocator.host_slots=8"], ["host_slots=8", "block of 16"]),
        (["allocator=contiguous", "allocator.host_slots=8"], ["no key 'host_slots'", "allocator=paged"]),
        (["workload.rate=0"], ["workload.rate"]),
        (["workload.rate=-1"], ["workload.rate"]),
        (["workload.rate=inf"], ["workload.rate"]),
        (["kv_slots=8"], ["8 slots"]),
        (["allocator=buddy"], ["on_demand", "exact"]),
        (["allocator._target_=allocators.paged.Pagd"], ["Pagd", "Paged"]),
        (["allocator._target_=no_such.Thing"], ["no_such"]),
        (["device.kind=tpu"], ["device.kind=tpu", "cuda"]),
        (["model.path=/no/such/model", "device=cpu"], ["/no/such/model"]),
        (["workload=trace", "workload.path=none.csv"], ["none.csv"]),
        (["clock=sundial"], ["clock=sundial", "measured"]),
        (["seed"], ["key=value"]),
        (["max_model_len=null"], ["max_model_len must be a whole number", "None"]),
        (["scheduler.policy=3"], ["scheduler.policy must be one of fcfs", "3"]),
        (["kv_slots=many"], ["kv_slots", "whole number", "many"]),
        (["kv_bytes=1.5"], ["kv_bytes", "whole number"]),
        (["slo_ms.tftt=2000"], ["slo_ms.tftt", "slo_ms.ttft"]),
        (["allocator.lanes=2"], ["allocator.lanes", "+allocator.lanes=VALUE"]),
    ],
)  # fmt: skip
def test_a_mistake_gets_an_answer_and_a_nonzero_exit(tmp_path, arguments, answers):
    own = {argument.partition("=")[0] for argument in arguments}
    fast = [
        argument for argument in FAST if argument.partition("=")[0] not in own and "workload=trace" not in arguments
    ]
    if "device.kind=tpu" in arguments:
        fast.remove("device=simulated")
    done = command(tmp_path, *fast, *arguments)
    assert done.code != 0
    assert all(answer in done.err for answer in answers), done.err
    assert "Traceback" not in done.err


def test_what_a_run_did_otherwise_than_one_may_think_is_said(tmp_path):
    done = command(tmp_path, *FAST, "model=llama_8b", "device.hardware=h100", "workload.arrival=burst",
                   "workload.rate=3", "slo_ms={ttft: 2000}", "hydra.run.dir=run")  # fmt: skip
    assert done.code == 0, done.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["device"] == "simulated: opt-13b-a100-sosp23"
    assert summary["goodput"] > 0
    said = " ".join(done.out.split())
    assert "simulated: opt-13b-a100-sosp23" in said
    assert "step times are those of opt-13b-a100-sosp23, whatever model and device.hardware may be" in said
    assert "workload.rate=3 has no effect with arrival=burst" in said


def test_results_that_cannot_be_written_are_told(tmp_path):
    (tmp_path / "results").write_text("a file where a folder should be")
    done = harness(tmp_path, *FAST)
    assert done.returncode == 2
    assert "results" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_is_quick_and_loads_no_torch(tmp_path):
    code = "import sys; sys.argv = ['harness', '--help']\nimport harness.__main__ as m\ntry: m.main()\n" \
           "except SystemExit: pass\nassert 'torch' not in sys.modules and 'pandas' not in sys.modules"  # fmt: skip
    done = subprocess.run((sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- a user's own allocator ----------------------------------------------------------------------------------------


@pytest.fixture
def plugin(tmp_path):
    """The allocator that the README shows, in a package outside the repository."""
    code = re.search(r"```python\n# my_pkg.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert code
    assert len(code[1].strip().splitlines()) <= 40
    (tmp_path / "my_pkg.py").write_text(code[1])
    return {"PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_the_allocator_of_the_readme_runs_and_keeps_the_contract(tmp_path, plugin):
    done = harness(tmp_path, *FAST, "allocator._target_=my_pkg.TwoSizes", "reservation=max_tokens", "debug=true",
                   "hydra.run.dir=run", **plugin)  # fmt: skip
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["finished"], summary["allocator"], summary["warnings"]) == (6, "my_pkg.TwoSizes", [])


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("def place(self, holder, tokens):\n        raise KeyError('no such lane')", "no such lane"),
        pytest.param("def place(self, holder, tokens):\n        return 'a lot'", "place", marks=pytest.mark.slow),
        pytest.param("def place(self, holder, tokens):\n        return 1", "place", marks=pytest.mark.slow),
        pytest.param("def footprint(self, tokens):\n        return 'plenty'", "footprint", marks=pytest.mark.slow),
    ],
)
def test_a_plug_in_that_raises_or_returns_garbage_fails_its_job_only(tmp_path, plugin, method, answer):
    broken = f"\nclass Broken(TwoSizes):\n    {method}\n"
    (tmp_path / "my_pkg.py").write_text((tmp_path / "my_pkg.py").read_text() + broken)
    targets = "allocator._target_=my_pkg.TwoSizes,my_pkg.Broken"
    done = harness(tmp_path, "-m", *FAST, targets, "reservation=max_tokens", **plugin)
    assert done.returncode == 1
    table = pd.read_csv(only(tmp_path, "results/sweep/*/comparison.csv"))
    assert table["status"].tolist() == ["finished", "failed"]
    assert answer in table.loc[1, "error"]
    assert "my_pkg.TwoSizes was not checked" in table.loc[0, "warnings"]
