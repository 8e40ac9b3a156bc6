"""The task of `experiment=validate`: reads a measured run, predicts it in every variant, and reports both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

from harness.errors import HarnessError
from harness.files import write_table
from harness.runner.latency.experts import Experts
from harness.runner.latency.skew import skew_enabled
from harness.runner.latency.table import TableLatency
from harness.runner.latency.table_files import read_meta
from harness.validate.collectives import NONE, Collectives, collectives_of, hidden_size
from harness.validate.engine import NULL_BLOCK, Engine, Setting, read_engine
from harness.validate.experts import SIZES, expert_block
from harness.validate.measured import Measured, read_measured
from harness.validate.predict import (
    Prediction,
    Progress,
    Variant,
    figures,
    mean_error,
    predict,
    published_error,
    variants,
)
from harness.validate.prompts import find_prompts
from harness.validate.report import Validation, report
from harness.validate.tables import doubts, layers_of, tables_folder

OURS = ("max_model_len", "kv_slots", "kv_bytes", "gpu_memory_utilization", "allocator", "reservation", "scheduler",
        "device", "model", "workload", "simulation", "clock", "server", "system")  # fmt: skip
MORE = 1.2  # times as many concurrent requests predicted as measured: an unrecorded limit held the real ones back


def validate(cfg: DictConfig, folder: Path, asked: set[str], facts: dict[str, Any],
             progress: Callable[[int], Progress] | None = None) -> dict[str, Any]:  # fmt: skip
    """Predict the run in `validate.measured` with the kernel tables in `validate.profile`.

    Writes `validate.csv` (every figure of every variant), `requests.csv` and `steps.csv` (of the headline), a figure
    and `REPORT.md`, and prints them. The headline is the variant with the settings of the run and of the tables.

    Raises:
        HarnessError: something is missing or does not fit; the message names it.
    """
    given: Any = OmegaConf.to_container(cfg.validate, resolve=True)
    for key in sorted(asked):
        if key.partition(".")[0] in OURS and key != "simulation.compiled":  # which changes no number
            raise HarnessError(f"{key}: experiment=validate takes the engine's settings from the run's meta file; set "
                               f"validate.{key.rpartition('.')[2]} instead, if there is such a key")  # fmt: skip
    if given["measured"] is None:
        raise HarnessError("experiment=validate needs validate.measured=FILE, the requests of a measured run (JSON "
                           "lines, plain or gzip)")  # fmt: skip
    facts["device"] = "simulated"
    tables = tables_folder(given["profile"])
    measured = read_measured(Path(given["measured"]))
    engine = read_engine(measured.path, given, read_meta(tables))
    find_prompts(measured, given["prompts"])
    tables = tables_folder(given["profile"], engine["tensor_parallel"])
    meta = read_meta(tables)
    notes = [*measured.notes, *doubts(engine, tables, meta)]
    layers = layers_of(given["layers"], engine, tables, meta)
    _decide(engine, measured)
    wanted = _skew(given["skew"], meta)
    experts = Experts.load(tables)
    told = _told(engine, experts, tables)
    hidden = hidden_size(engine, tables, meta) if told and (given["collectives"] or experts) else None
    curves = collectives_of(given["collectives"], engine, hidden)
    sizes = list(SIZES) if experts and engine["tensor_parallel"] * engine["data_parallel"] > 1 else []
    headline = Variant(wanted.value, engine["enable_prefix_caching"], engine["async_scheduling"],
                       *(names[0] if names else "" for names in ([curve.name for curve in curves], sizes)))  # fmt: skip
    has_skew = any((tables / f"skew_fit.csv{end}").is_file() for end in ("", ".gz"))
    wanted_variants = variants(headline, has_skew, [curve.name for curve in curves], sizes)
    keys = {(one.skew, one.collectives, one.sizes) for one in wanted_variants}
    loaded = {key: _load(tables, layers.value, key, engine, curves, experts, hidden or 0) for key in keys}
    missing = None
    if told and not curves and "all_reduce" not in loaded[headline.skew, headline.collectives, headline.sizes].kernels:
        missing = (f"the tables have no {told}: what the devices tell each other takes no time here; "
                   "validate.collectives=FILE or ring gives it some")  # fmt: skip
        notes.insert(0, missing)
    notes += _of_experts(engine, experts, tables)
    predictions = [
        predict(measured, engine, loaded[one.skew, one.collectives, one.sizes], one, cfg,
                folder / "steps.csv" if one == headline else None, progress(len(measured.table)) if progress else None)
        for one in wanted_variants
    ]  # fmt: skip
    tables_of = {one.variant: figures(measured.table, one.requests) for one in predictions}
    _write(folder, measured, predictions, tables_of)
    settings = [*engine.settings.values(), layers, wanted, *_named(curves, given["collectives"])]
    result = Validation(
        measured=measured, engine=engine, profile=tables, predictions=predictions, tables=tables_of,
        settings=settings, why=_why(engine, measured, wanted),
        notes=[*notes, *_pool(measured, engine, predictions[0], folder / "steps.csv")],
        published=published_error(tables, tables_of[headline]), missing=missing,
    )  # fmt: skip
    report(result, folder)
    return {
        "device": "simulated", "workload": measured.path.name, "model": engine.model,
        "requests": len(measured.table), "variant": headline.label, "incomplete": missing,
        "mean_error_pct": mean_error(tables_of[headline]), "published_error_pct": result.published,
        "mean_error_pct_by_variant": {one.label: mean_error(table) for one, table in tables_of.items()},
        "settings": {setting.name: [setting.value, setting.source] for setting in result.settings},
        **predictions[0].facts, "notes": result.notes,
    }  # fmt: skip


def _told(engine: Engine, experts: Experts | None, tables: Path) -> str:
    """The kinds of communication that the devices need; empty = none.

    Raises:
        HarnessError: the run shared experts, and the tables have none.
    """
    if engine["expert_parallel"] and experts is None:
        raise HarnessError(f"{engine.settings['expert_parallel'].source}: the run shared its experts, and {tables} has "
                           "no moe.csv or moe.csv.gz")  # fmt: skip
    told = ["all_reduce"] if engine["tensor_parallel"] > 1 else []
    return " or ".join(told + (["all_gather and reduce_scatter"] if experts and engine["data_parallel"] > 1 else []))


def _of_experts(engine: Engine, experts: Experts | None, tables: Path) -> list[str]:
    """Notes for the reader about experts and engines in lockstep."""
    notes, data = [], engine["data_parallel"]
    if data > 1:
        notes.append(f"{data} engines in lockstep: all are padded to the one with the most tokens (not to a captured "
                     "graph), an idle one computes a dummy token, and a request goes to the one with the least of "
                     "4 x waiting + running; a pool is that of one engine")  # fmt: skip
    if experts and engine["tensor_parallel"] * data > 1:
        notes.append(f"{experts.number} experts, {experts.top_k} for a token, all alike: a device computes its share "
                     "of the tokens of all engines. LLMServingSim's sizes anchor exchange and experts to one engine's "
                     "tokens instead, and its output matrix sees an engine's padding")  # fmt: skip
        if not engine["expert_parallel"]:
            notes.append("experts were shared by their width, and the tables hold whole ones: as many bytes and "
                         "products a device are taken to cost the same")  # fmt: skip
    return notes


def _load(tables: Path, layers: int, key: tuple[bool, str, str], engine: Engine, curves: list[Collectives],
          experts: Experts | None, hidden: int) -> TableLatency:  # fmt: skip
    """The kernel tables with one variant's skew correction, collectives and message sizes."""
    skew, name, sizes = key
    curve = next((one for one in curves if one.name == name), NONE)
    rows = curve.rows
    if experts and engine["data_parallel"] > 1:  # after the experts comes a reduce-scatter, not an all-reduce
        rows = [(kernel, tokens, time / 2) for kernel, tokens, time in rows]
    block = expert_block(experts, engine, hidden, curve, sizes) if experts and sizes else None
    return TableLatency.load(tables, layers, skew=skew, tensor_parallel=engine["tensor_parallel"], more=rows,
                             experts=block)  # fmt: skip


def _named(curves: list[Collectives], given: str | None) -> list[Setting]:
    """The source of the collectives, as a setting: they belong to a machine."""
    return [Setting(f"collectives, {curve.name}", curve.said, f"validate.collectives={given}" if not i else "beside it")
            for i, curve in enumerate(curves)]  # fmt: skip


def _skew(given: bool | None, meta: Any) -> Setting:
    if given is not None:
        return Setting("skew correction", bool(given), "validate.skew")
    return Setting("skew correction", skew_enabled(meta), "the tables' meta.yaml: skew_fit.enabled")


def _decide(engine: Engine, measured: Measured) -> None:
    """Set the sizes that were not recorded, such that neither is ever a limit."""
    tokens = measured.table["prompt_tokens"] + measured.table["output_tokens"]
    engine.decide("max_model_len", int(tokens.max()), "as long as the longest request, so it never cuts one")
    blocks = int((-(-tokens // engine["block_size"])).sum()) + NULL_BLOCK
    engine.decide("num_gpu_blocks", blocks, "as many as all requests take together, so the pool never fills")


def _why(engine: Engine, measured: Measured, skew: Setting) -> list[str]:
    """Why the headline is the variant it is."""
    said = {True: "on", False: "off"}
    cache, ahead = engine.settings["enable_prefix_caching"], engine.settings["async_scheduling"]
    if measured.prompts:
        chains = f"hash chains of all {len(measured.table)} prompts from {measured.prompts}"
    else:
        chains = "no hash chains: only a preempted request finds its own blocks again"
    return [
        f"skew correction {said[skew.value]}: {skew.source}",
        f"prefix cache {said[cache.value]}: {cache.source}; {chains}",
        f"{'asynchronous' if ahead.value else 'synchronous'} scheduling: {ahead.source}",
    ]


def _pool(measured: Measured, engine: Engine, headline: Prediction, steps: Path) -> list[str]:
    """How full the pool was."""
    size, peak = (engine["num_gpu_blocks"] - NULL_BLOCK) * engine["block_size"], headline.facts["peak_tokens"]
    size *= engine["data_parallel"]
    setting = engine.settings["num_gpu_blocks"]
    if headline.facts["pool_filled"]:
        return [f"the pool of {size:,} tokens filled: {headline.facts['preemptions']} preemptions predicted"]
    said = f"the pool never filled: at most {peak:,} tokens were in use at once, nobody was refused or preempted"
    if setting.assumed:
        books = pd.read_csv(steps, usecols=["used", "reserved", "rounding", "cached"])
        said += (f"; its size was not recorded, {size:,} tokens are {setting.source}. A real pool of "
                 f"{books.sum(axis=1).max():,} tokens would neither have filled nor have forgotten a prompt, one of "
                 f"fewer than {peak:,} would have filled: then set validate.num_gpu_blocks")  # fmt: skip
        told, real = headline.facts["peak_seqs"], measured.under_way
        if real is not None and told > MORE * real:
            said += (f". It seems to have filled: the engine had at most {real} requests under way at once, and {told} "
                     "are predicted")  # fmt: skip
    return [said]


def _write(
    folder: Path, measured: Measured, predictions: list[Prediction], tables: dict[Variant, pd.DataFrame]
) -> None:
    rows = [table.assign(variant=one.label, headline=i == 0) for i, (one, table) in enumerate(tables.items())]
    whole = pd.concat(rows, ignore_index=True)
    write_table(folder / "validate.csv", whole[["variant", "headline", *whole.columns[:5]]])
    both = measured.table.join(predictions[0].requests.add_prefix("predicted_"))
    write_table(folder / "requests.csv", both)
