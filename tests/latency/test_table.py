"""Kernel tables: what is looked up how often, and what lies between measured points."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.runner.latency.grid import grid, interpolate
from harness.runner.latency.skew import Skew
from harness.runner.latency.table import TableLatency
from schedulers.request import Batch, BatchStats, Request, Sequence

PROFILES = Path(__file__).parents[3] / "shared" / "profiles"
NOTHING = BatchStats(0, 0, 0, 0, 0, 0, 0)
LAYERS = ("embedding", "final_layernorm", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn",
          "down_proj")  # fmt: skip


def tables(attention: list[tuple[float, ...]], dense: float = 0.0, **more: object) -> TableLatency:
    """All kernels but attention take `dense` µs, plus what `more` says."""
    rows = [(name, tokens, dense) for name in LAYERS for tokens in (1, 4096)]
    per_sequence = [(name, n, dense) for name in ("lm_head", "sampler") for n in (1, 256)]
    return TableLatency(rows, per_sequence, attention, **{"layers": 1, **more})  # type: ignore[arg-type]


def decodes(count: int, mean_history: float, idle: int = 0) -> BatchStats:
    lanes = count + idle
    return NOTHING._replace(decodes=count, idle=idle, context=round(lanes * (mean_history + 1)))


def prompt(tokens: int, history: float = 0.0) -> BatchStats:
    return NOTHING._replace(prompts=1, prompt_tokens=tokens, pairs=round(tokens * (history + tokens / 2)))


def test_each_kernel_counts_as_often_as_it_runs() -> None:
    """2 once a step, 2 by sequences, 7 a layer of which one twice; 10 layers."""
    model = tables([(0, 0, 1, 0, 100)], dense=1.0, layers=10)
    assert model.linear_us(decodes(1, 0)) == 2 + 2 + 10 * 8
    assert model.step_ns(batch([1])) == (2 + 2 + 10 * 8 + 10 * 100) * 1000


def test_optional_kernels_count_where_they_were_measured() -> None:
    rows = [(name, 1, 1.0) for name in (*LAYERS, "qk_norm", "all_reduce")]
    model = TableLatency(rows, [("lm_head", 1, 0), ("sampler", 1, 0)], [(0, 0, 1, 0, 0)], layers=1)
    assert model.linear_us(decodes(1, 0)) == 2 + 8 + 1 + 2


def test_a_missing_kernel_is_an_error_that_names_it() -> None:
    with pytest.raises(HarnessError, match="down_proj, lm_head"):
        TableLatency([(name, 1, 1.0) for name in LAYERS[:-1]], [("sampler", 1, 0)], [(0, 0, 1, 0, 0)], layers=1)


def test_tokens_and_sequences_are_counted_apart() -> None:
    """A step of two prompts and three decodes: 3 + 30 tokens, 5 sequences."""
    rows = [(name, tokens, 0.0) for name in LAYERS[1:] for tokens in (1, 2)]
    rows += [("embedding", 1, 1.0), ("embedding", 101, 101.0)]
    per_sequence = [("lm_head", 1, 1000.0), ("lm_head", 11, 11_000.0), ("sampler", 1, 0.0)]
    model = TableLatency(rows, per_sequence, [(0, 0, 1, 0, 0)], layers=1)
    stats = decodes(3, 10)._replace(prompts=2, prompt_tokens=30)
    assert model.linear_us(stats) == pytest.approx(33 + 5000)


def test_attention_is_linear_in_the_mean_history() -> None:
    model = tables([(0, 0, 2, 100, 10.0), (0, 0, 2, 300, 30.0), (0, 0, 4, 100, 20.0), (0, 0, 4, 300, 60.0)])
    assert model.attention_us(decodes(2, 200)) == pytest.approx(20)
    assert model.attention_us(decodes(3, 200)) == pytest.approx(30)  # between 2 and 4 sequences
    assert model.attention_us(decodes(2, 50)) == pytest.approx(10)  # below the first point: as there
    assert model.attention_us(decodes(2, 500)) == pytest.approx(50)  # above the last: drawn out
    assert model.attention_us(decodes(1, 200, idle=1)) == pytest.approx(20)  # an idle lane is read too


def test_a_mixed_step_is_one_lookup_not_a_sum() -> None:
    points = [(0, 0, 1, 10, 5.0), (16, 0, 0, 0, 7.0), (16, 0, 1, 10, 8.0)]
    model = tables(points)
    mixed = decodes(1, 10)._replace(prompts=1, prompt_tokens=16, pairs=16 * 8)
    assert model.attention_us(mixed) == 8.0
    assert model.attention_us(prompt(16)) == 7.0


def test_several_chunks_are_one_that_looks_back_as_far() -> None:
    """10 tokens over 100 and 30 over 20: 40 tokens whose pairs are the same."""
    points = [(40, history, 0, 0, float(history)) for history in (0, 1000)]
    pairs = 10 * (100 + 5) + 30 * (20 + 15)
    stats = NOTHING._replace(prompts=2, prompt_tokens=40, pairs=pairs)
    assert tables(points).attention_us(stats) == pytest.approx(pairs / 40 - 20)


def test_a_prompt_alone_never_leans_on_a_decode() -> None:
    """8 tokens, fewer than measured: as 16, not half of what a decode takes."""
    assert tables([(0, 0, 1, 10, 1.0), (16, 0, 0, 0, 7.0)]).attention_us(prompt(8)) == 7.0


def test_holes_and_interleaved_grids_are_bridged() -> None:
    """Each branch is interpolated between its own points."""
    plane = [(x, y, 2.0 * x + y) for x, ys in ((0, (0, 2, 8)), (1, (1, 3)), (4, (0, 8))) for y in ys]
    node = grid(plane)
    for x, y in ((0, 5), (0.5, 2), (1, 2), (2, 3), (4, 4), (3, 8), (1, 9)):
        assert interpolate(node, x, y) == pytest.approx(2 * x + y)


def test_a_branch_that_lacks_a_later_axis_is_passed_over() -> None:
    """Two interleaved grids: at (2, 3) nothing was measured with decodes, at (2, 2) only long ones."""
    plane = [(2, y, z, x * 100.0 + 10 * y + z) for x, y in ((2, 1), (2, 4)) for z in (0, 1, 8)]
    plane += [(2, 3, 0, -999.0), (2, 2, 6, 226.0), (2, 2, 8, 228.0)]
    node = grid(plane)
    assert interpolate(node, 2, 3, 4) == pytest.approx(234)
    assert interpolate(node, 2, 2, 4) == pytest.approx(224)
    assert interpolate(node, 2, 2, 7) == pytest.approx(227)  # that one is measured there
    assert interpolate(node, 2, 3, 0) == -999


def test_outside_of_all_branches_the_ends_hold_or_are_drawn_out() -> None:
    node = grid([(x, y, 10.0 * x + y) for x in (1, 2) for y in (1, 2)])
    assert interpolate(node, 0, 0) == 11
    assert interpolate(node, 1.5, 4) == pytest.approx(19)
    assert interpolate(node, 3, 1.5) == pytest.approx(31.5)
    assert interpolate(node, 3, 3) == pytest.approx(33)
    assert interpolate(grid([(1, 5.0), (2, 1.0)]), 10) == 0  # never below nothing


def test_a_kind_of_step_that_was_never_measured_is_named() -> None:
    model = tables([(16, 0, 0, 0, 7.0)])
    with pytest.raises(HarnessError, match="no step of decodes alone"):
        model.attention_us(decodes(2, 100))
    with pytest.raises(HarnessError, match="no step of prompts with decodes"):
        model.attention_us(decodes(2, 100)._replace(prompts=1, prompt_tokens=16, pairs=16 * 8))


def batch(histories: list[int]) -> Batch:
    seqs = [Sequence("s", request=Request(0, 0, 1, 1), stored=history + 1) for history in histories]
    return Batch(seqs=seqs, counts=[1] * len(seqs))


def test_unequal_contexts_cost_a_share_of_the_longest() -> None:
    points = [(0, 0, n, kv, float(kv)) for n in (1, 8) for kv in (0, 1000)]
    bins = {"n": [0, 2, 8], "skew_rate": [-0.01, 0.5, 1.01], "kv_big": [0, 10_000], "kp": [-1, 0, 100]}
    labels = {"n": ["few", "many"], "skew_rate": ["low", "high"], "kv_big": ["any"], "kp": ["none", "some"]}
    skew = Skew(bins, labels, {(0, "many", "low", "any", "none"): 0.25}, default=0.5)
    model = tables(points, skew=skew)
    assert model.step_ns(batch([100, 100, 100, 700])) == round((250 + 0.25 * 450) * 1e3)  # one of four exceeds the mean
    assert model.step_ns(batch([100, 700])) == round((400 + 0.5 * 300) * 1e3)  # no such bucket
    assert model.step_ns(batch([300, 300])) == 300_000  # nothing is unequal
    assert tables(points).step_ns(batch([100, 700])) == 400_000


@pytest.mark.parametrize("gpu", ["RTX4090", "RTXPRO6000"])
def test_the_measured_tables_answer_for_any_step(gpu: str) -> None:
    folder = PROFILES / gpu / "Llama-3.1-8B-bf16-tp1"
    if not folder.is_dir():
        pytest.skip("the measured tables are not here")
    model = TableLatency.load(folder, layers=32)
    assert (model.skew is not None) == (gpu == "RTXPRO6000")
    times = [model.step_ns(batch([500] * n)) / 1e6 for n in (1, 16, 64, 200)]
    assert times == sorted(times)
    assert 8 < times[0] < 20  # 16 GB of weights at about 1 to 1.8 TB/s
    long = model.step_ns(batch([30_000])) / 1e6  # beyond the grid
    assert times[0] < long < 3 * times[0]
    chunk = NOTHING._replace(prompts=1, prompt_tokens=2000, pairs=2000 * (3000 + 1000))
    alone, mixed = (model.attention_us(stats) for stats in (chunk, chunk._replace(decodes=50, context=50 * 700)))
    assert alone < mixed < 2 * alone


def test_the_roofline_is_near_the_measured_kernels() -> None:
    """RTX 4090, Llama-3.1-8B: decode batches and prompts within a quarter."""
    from omegaconf import OmegaConf

    from harness.runner.latency.roofline import Roofline

    folder = PROFILES / "RTX4090" / "Llama-3.1-8B-bf16-tp1"
    if not folder.is_dir():
        pytest.skip("the measured tables are not here")
    config = Path(__file__).parents[2] / "experiments" / "model" / "llama_8b.yaml"
    model = OmegaConf.to_container(OmegaConf.load(config).config)
    measured, roofline = TableLatency.load(folder, 32), Roofline("rtx4090", model)
    prompts = (prompt(n)._replace(prompt_context=n) for n in (512, 2048))
    for stats in (*(decodes(n, 999) for n in (1, 8, 32, 128)), *prompts):
        base, slope = roofline.line(stats)
        assert (base + slope * stats.context) / 1e3 == pytest.approx(
            measured.linear_us(stats) + 32 * measured.attention_us(stats), rel=0.25
        )
