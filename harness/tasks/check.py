"""`python -m harness check`: does our runner say what the model says by itself?

`python -m harness check model.config=FILE` (or `model=NAME`, `model.path=`, with any other key) checks one model. Exit
codes: 0 equal, 1 different, 2 refused. `python -m harness check [FAMILY ...] [KEY=VALUE ...] [--out DIR]` goes through
the tested architectures as tiny models, with all kernels that run here, and prints a table (and writes it); it ends
with 1 if any of them differs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from harness.devices import must_run_here
from harness.errors import HarnessError
from harness.lookup import nearest

COLUMNS = ("architecture", "model_type", "kernels", "verdict", "difference", "tolerance", "seconds", "reason")


def main(arguments: list[str], experiments: Path) -> int:
    """The command line; returns the exit code.

    Args:
        arguments: behind `check`.
        experiments: the folder of configurations.

    Raises:
        HarnessError: the one model asked for is refused, or a mistake in the arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m harness check", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("words", nargs="*", metavar="FAMILY | KEY=VALUE")
    parser.add_argument("--out", type=Path, help="a folder for the table: models.csv and README.md")
    options = parser.parse_args(arguments)
    overrides = [word for word in options.words if "=" in word]
    names = [word for word in options.words if "=" not in word]
    with initialize_config_dir(str(experiments), version_base="1.3"):
        cfg = compose("config", overrides=overrides)
    must_run_here(cfg, "check runs a model")
    if any(word.partition("=")[0].lstrip("+").partition(".")[0] == "model" for word in overrides) and not names:
        return _check_one(cfg)
    columns = f"{'architecture':<18}{'kernels':<9}{'verdict':<11}{'difference':<12}{'seconds':<9}"
    print(f"{columns}(in standard deviations of the logits)")
    table = check_families(cfg, names, _show)
    if options.out:
        _write(table, options.out)
    return int((table["verdict"] == "different").any())


def _check_one(cfg: DictConfig) -> int:
    from harness.runner.device import open_model
    from harness.runner.logits_check import compare_logits
    from harness.runner.refusals import refuse_lengths

    model, backend = open_model(cfg)
    refuse_lengths(model, 1)
    verdict = compare_logits(model, backend, cfg.seed)
    who = f"{model.config.model_type} ({type(model).__name__}, {backend.name})"
    print(f"{who}: {verdict}, in units of the logits' standard deviation; {verdict.seconds:.2f} s")
    return int(not verdict.equal)


def check_families(cfg: DictConfig, names: list[str] | None = None,
                   tell: Callable[[dict[str, Any]], None] | None = None) -> pd.DataFrame:  # fmt: skip
    """One row for each tested architecture, or those named, and each kind of kernels: the verdict, the largest
    difference, the time, the reason.

    Args:
        cfg: the whole configuration; its model is replaced by one after the other.
        tell: called with each row as it is found.

    Raises:
        HarnessError: there is no such architecture.
    """
    from harness.runner.device import open_model, runnable
    from harness.runner.families import REFUSED, SERVED, families
    from harness.runner.logits_check import compare_logits

    known = families(SERVED) | families(REFUSED)
    for name in names or ():
        if name not in known:
            raise HarnessError(f"there is no tested architecture {name!r}{nearest(name, known)}")
    rows = []
    every = runnable(cfg.device.kind) if cfg.device.kernels == "auto" else [str(cfg.device.kernels)]
    for name, kernels in product(names or known, every):
        group = {"name": name, "path": None, "config": known[name], "init_std": 0.12}
        row: dict[str, Any] = {"architecture": name, "model_type": known[name]["model_type"], "kernels": kernels,
                               "verdict": "refused"}  # fmt: skip
        begun = time.perf_counter()
        try:
            changed = OmegaConf.merge(cfg, {"model": None}, {"model": group, "device": {"kernels": kernels}})
            model, backend = open_model(changed)  # type: ignore[arg-type]
            verdict = compare_logits(model, backend, cfg.seed)
            row |= {"verdict": "equal" if verdict.equal else "different", "difference": verdict.difference,
                    "tolerance": verdict.tolerance}  # fmt: skip
        except HarnessError as error:
            row["reason"] = str(error)
        row["seconds"] = time.perf_counter() - begun
        rows.append(row)
        if tell:
            tell(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _show(row: dict[str, Any]) -> None:
    which = f"{row['architecture']:<18}{row['kernels']:<9}{row['verdict']:<11}"
    print(f"{which}{_difference(row):<12}{row['seconds']:<9.2f}{_reason(row)}".rstrip(), flush=True)


def _difference(row: dict[Any, Any]) -> str:
    return f"{row['difference']:.1e}" if pd.notna(row.get("difference")) else ""


def _reason(row: dict[Any, Any]) -> str:
    return str(row["reason"]) if pd.notna(row.get("reason")) else ""


def _write(table: pd.DataFrame, folder: Path) -> None:
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "models.csv", index=False, float_format="%.3g")
    lines = [
        f"| {row['architecture']} | {row['kernels']} | {row['verdict']} | "
        f"{_difference(row)} | {row['seconds']:.2f} | {_reason(row)} |"
        for row in table.to_dict("records")
    ]
    versions = f"transformers {transformers.__version__}, torch {torch.__version__}"
    (folder / "README.md").write_text(
        "# Models: what the runner says beside what `transformers` says\n\n"
        f"`python -m harness check --out {folder}`, {versions}. Tiny models with random weights; the largest "
        "difference of any logit, in units of the logits' standard deviation. Three sequences share steps, lie strewn "
        "over a pool full of NaN, and one loses its memory and is computed again; those of recurrent models are "
        "compared with the model's own cache cut at the same places, too. See `harness/runner/logits_check.py`.\n\n"
        "| architecture | kernels | verdict | difference | seconds | why |\n|---|---|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
