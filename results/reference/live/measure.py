"""All tables of this folder, with both cores of a quiet machine to itself, in about 20 minutes:

    python results/reference/live/measure.py --model MODEL --serve COMMAND --bench COMMAND [--rounds 3]

MODEL is what the server loads. COMMAND starts vLLM's server (default `vllm serve`; or `PYTHON -m
vllm.entrypoints.openai.api_server`) and its client (default `vllm bench serve`), quoted. This starts the server,
measures it with both clients (`clients.py`), then with `experiment=beside`, stops it, opens 1,000 streams to a test
server, and leaves `tables.md`, `clients.csv`, `beside.csv`, `beside.png`, `latency.yaml` and `calibration.csv` beside
itself (or in --out); what the runs wrote stays in --work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from clients import call, interleaved, report

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
SERVER = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "64",
          "--no-enable-prefix-caching", "--served-model-name", "tiny-llama"]  # fmt: skip
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
         "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}  # fmt: skip
BESIDE = ["experiment=beside", "workload=uniform", "workload.prompt.low=32", "workload.prompt.high=256",
          "workload.output.low=16", "workload.output.high=96", "beside.rates=[1,2,3,4,6]",
          "beside.fit=[1,6]", "max_model_len=1024"]  # fmt: skip
KEPT = ("beside.csv", "beside.png", "latency.yaml", "calibration.csv")
READY_S = 180


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--serve", default="vllm serve")
    parser.add_argument("--bench", default="vllm bench serve")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of the requests and streams, for a trial")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--work", type=Path, default=REPOSITORY / "results" / "live")
    asked = parser.parse_args()
    work, out = asked.work.absolute(), asked.out.absolute()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(REPOSITORY)
    os.environ |= QUIET
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped, too
    url, parts = f"http://127.0.0.1:{asked.port}", [about(asked.share)]
    named = ["--model", asked.model] if "-m" in shlex.split(asked.serve) else [asked.model]
    with (work / "serve.log").open("w") as log:
        command = [*shlex.split(asked.serve), *named, *SERVER, "--port", str(asked.port)]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_for(url, server, work / "serve.log")
            clients = interleaved(url, asked.model, asked.bench, work, asked.rounds, asked.share)
            shutil.copy(work / "clients.csv", out)
            parts.append(f"## Their client and ours, {asked.rounds} rounds\n\n{report(clients)}")
            leave(parts, out)
            told = call([sys.executable, "-m", "harness", *BESIDE, f"server.url={url}", f"beside.rounds={asked.rounds}",
                         f"workload.num_requests={round(60 * asked.share)}",
                         f"beside.log={work}/serve.log", f"hydra.run.dir={work}/beside"])  # fmt: skip
            for name in KEPT:
                shutil.copy(work / "beside" / name, out)
            parts.append(f"## Measured beside simulated\n\n```\n{beside_lines(told)}\n```")
            leave(parts, out)
        finally:
            server.terminate()
            server.wait(60)
    os.environ["KVLAB_STREAMS"] = str(round(1000 * asked.share))
    streams = call([sys.executable, "-m", "pytest", "-s", "tests/benchmarks/test_live.py", "--benchmark-only"])
    parts.append(f"## Streams open at once\n\n```\n{streams[streams.index('{') : streams.index('}') + 1]}\n```")
    leave(parts, out)
    print((out / "tables.md").read_text())


def about(share: float) -> str:
    """The machine, how busy it was when this began, and whether this was only a trial."""
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    when = time.strftime("%Y-%m-%d")
    trial = f" **A trial with {share:.0%} of the requests.**" if share < 1 else ""
    machine = f"{os.cpu_count()} × {platform.machine()}"
    return f"# Tables that `measure.py` wrote\n\n{when}, {machine}; load average before: {load}.{trial}"


def leave(parts: list[str], out: Path) -> None:
    """Whatever comes later, what there is stays."""
    (out / "tables.md").write_text("\n\n".join(parts) + "\n")


def beside_lines(told: str) -> str:
    """The table that `experiment=beside` prints, and the line about its model."""
    lines = told.splitlines()
    begin = next(at for at, line in enumerate(lines) if "measured" in line and "simulated" in line)
    end = next(at for at, line in enumerate(lines) if line.startswith("use it:"))
    return "\n".join(lines[begin:end])


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Until the server answers."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        if server.poll() is not None:
            sys.exit(f"the server did not start:\n{log.read_text()[-2000:]}")
        try:
            json.load(urllib.request.urlopen(f"{url}/v1/models", timeout=5))
            return
        except OSError:
            time.sleep(1)
    sys.exit(f"the server was not ready after {READY_S} s: {log}")


if __name__ == "__main__":
    main()
