"""How long a sweep takes by launcher and number of workers: `python -m tests.load --launchers`."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOBS = 12
SWEEP = ("-m", "device=simulated", "workload.num_requests=10000", "system=vllm", "memory_map=false",
         f"seed=range({JOBS})", "hydra.sweep.dir=sweep")  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]


def _joblib(workers: int) -> tuple[str, ...]:
    return ("hydra/launcher=joblib", f"hydra.launcher.n_jobs={workers}")


def _ray(workers: int) -> tuple[str, ...]:
    return ("hydra/launcher=ray", f"+hydra.launcher.ray.init.num_cpus={workers}")


TRIED = [("one process", 1, ()), *(("joblib", n, _joblib(n)) for n in (1, 2)), *(("ray", n, _ray(n)) for n in (1, 2))]


def measure(out: Path | None) -> int:
    """Run the sweep by each launcher; prints, and writes `sweeps.csv` and `README.md`. Gives the exit code."""
    rows = []
    for name, workers, words in TRIED:
        with tempfile.TemporaryDirectory(prefix="kvlab-launchers-") as place:
            row = {"launcher": name, "workers": workers, **_timed(Path(place), words)}
        rows.append(row)
        print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        with open(out / "sweeps.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        cells = [f"| {' | '.join(map(str, row.values()))} |" for row in rows]
        (out / "README.md").write_text("\n".join([ABOUT, *cells]) + "\n", encoding="utf-8")
    return int(any(row["finished"] != JOBS for row in rows))


def _timed(place: Path, words: tuple[str, ...]) -> dict[str, object]:
    """One sweep in a process of its own: (jobs finished, s in all, s from the plan to the last summary)."""
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "harness", *SWEEP, *words], cwd=place, env=os.environ | path,
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    whole = time.monotonic() - begun
    if done.returncode:
        print(done.stderr[-500:], file=sys.stderr)
    ends = [path.stat().st_mtime for path in place.glob("sweep/*/summary.json")]
    plan = place / "sweep" / "plan.json"
    jobs = max(ends) - plan.stat().st_mtime if ends else 0.0
    return {"finished": len(ends), "whole_s": f"{whole:.1f}", "jobs_s": f"{jobs:.1f}"}


ABOUT = f"""# A sweep by launcher and workers

```bash
python -m tests.load --launchers --out results/reference/sweeps
```

runs `python -m harness {" ".join(SWEEP[:-1])}`
by each launcher: {JOBS} simulations of 10,000 requests, each the work of one core. `jobs_s` is from the plan to the
last job's end, workers started included; in `whole_s` are start, composition and report, too.

| launcher | workers | jobs finished | whole, s | jobs, s |
|---|---|---|---|---|"""
