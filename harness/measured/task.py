"""The task of `experiment=measured`: predicts each row of measured runs, and reports errors by group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from harness.errors import HarnessError
from harness.files import read_csv, write_table
from harness.measured.predict import Predictor, busy
from harness.measured.report import report
from harness.measured.settings import read_row
from harness.operators.compose import Rules

NEEDED = ("id", "origin", "measured", "concurrency", "backend", "backend_version", "model_path", "system", "precision",
          "isl", "osl", "gemm_quant_mode", "moe_quant_mode", "batch_size", "tp_size", "pp_size", "attention_dp_size",
          "moe_tp_size", "moe_ep_size", "silicon_ttft_ms", "silicon_tpot_ms")  # fmt: skip
NOT_AS_STATED = 1.15  # share of the GPU's time: a run that would need more was not as stated


def measured(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any],
             progress: Callable[[int], Callable[[int, int], None]] | None = None) -> dict[str, Any]:  # fmt: skip
    """Predict every row of `measured.rows` from the operator tables in `device.tables`.

    Writes `predictions.csv` (a row each), `groups.csv` (errors by model, GPU, engine and concurrency), figures and
    `REPORT.md`.

    Raises:
        HarnessError: a file that is missing, or lacks a column.
    """
    given: Any = OmegaConf.to_container(cfg.measured, resolve=True)
    tables = OmegaConf.select(cfg, "device.tables")
    if given["rows"] is None or tables is None:
        raise HarnessError("experiment=measured needs measured.rows=FILE, a table of measured runs, and "
                           "device.tables=DIR, a folder of operator tables")  # fmt: skip
    rows = read_rows(Path(given["rows"]))
    rows = rows.iloc[given["first"] :: given["every"]]
    facts["device"] = "simulated"
    predictor = Predictor(Path(tables), Path(given["models"]) if given["models"] else None, given["version"],
                          Rules.without(list(given["without"])), cfg.seed)  # fmt: skip
    if not Path(tables).is_dir():
        raise HarnessError(f"device.tables={tables}: there is no such folder")
    tell = progress(len(rows)) if progress else None
    told = []
    for done, (number, values) in enumerate(rows.iterrows()):
        told.append(predict_row(predictor, int(str(number)), {str(key): value for key, value in values.items()}))
        if tell:
            tell(done + 1, 0)
    table = pd.DataFrame(told)
    write_table(folder / "predictions.csv", table)
    groups = report(table, rows, folder, predictor)
    predicted = table["refused"] == ""
    return {
        "device": "simulated", "workload": Path(given["rows"]).name, "requests": len(table),
        "predicted": int(predicted.sum()), "refused": int((~predicted).sum()), "errors": groups,
    }  # fmt: skip


def read_rows(path: Path) -> pd.DataFrame:
    """The table of measured runs, numbered from 0.

    Raises:
        HarnessError: it does not exist, or is not such a table.
    """
    return read_csv(path, "measured.rows", NEEDED)


def predict_row(predictor: Predictor, number: int, values: dict[str, Any]) -> dict[str, Any]:
    """The entries of `predictions.csv` for a row: the prediction and its assumptions, or why there is none."""
    told: dict[str, Any] = {"row": number, "id": values["id"], "model": values["model_path"], "gpu": values["system"],
                            "engine": values["backend"], "origin": values["origin"], "precision": values["precision"],
                            "concurrency": values["concurrency"], "isl": values["isl"], "osl": values["osl"],
                            "predicted_ttft_ms": None, "predicted_tpot_ms": None, "ttft_error_pct": None,
                            "tpot_error_pct": None, "not_as_stated": "", "refused": "", "pool": "",
                            "assumed": ""}  # fmt: skip
    try:
        real = _measured(values, "silicon_ttft_ms"), _measured(values, "silicon_tpot_ms")
        row = read_row(number, values)
        one = predictor.predict(row)
        needs = busy(predictor, row, *real)
    except HarnessError as error:
        return told | {"refused": str(error)}
    told |= {"predicted_ttft_ms": one.ttft_ms, "predicted_tpot_ms": one.tpot_ms, "pool": one.pool,
             "assumed": "; ".join(one.assumed)}  # fmt: skip
    if needs > NOT_AS_STATED:
        told["not_as_stated"] = f"busy {100 * needs:.0f} %"
    for name, ours, was in (("ttft", one.ttft_ms, real[0]), ("tpot", one.tpot_ms, real[1])):
        if was == was and was > 0:
            told[f"{name}_error_pct"] = 100 * (ours / was - 1)
    return told


def _measured(values: dict[str, Any], name: str) -> float:
    try:
        return float(values[name])
    except (TypeError, ValueError) as error:
        raise HarnessError(f"{name}={values[name]} is no number") from error
