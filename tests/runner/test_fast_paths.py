"""Flat steps, turned weights and graphs of decodes serve today's models too, or step aside and say so."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from allocators.base import Allocator
from allocators.contiguous import Contiguous
from allocators.paged import Paged
from allocators.vllm_hybrid import VllmHybrid
from harness.errors import HarnessError
from harness.runner import device as device_module
from harness.runner.device import Loaded, load
from harness.runner.families import families
from harness.runner.torch_device import capture, warm_up
from schedulers.continuous import Continuous
from schedulers.reservation import RESERVATIONS
from tests.runner.serving import VOCABULARY, probed_of, relative, serve
from tests.runner.test_graphs import remembered

POOL = {"seed": 0, "max_model_len": 64, "kv_slots": 64, "kv_bytes": None, "gpu_memory_utilization": None}
# Experts are left out: torch's `_grouped_mm` can't be traced in float32. So are models with an attention of their own.
ASIDE = ("qwen3_moe", "mixtral", "gpt_oss", "llama4", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash",
         "kimi_linear", "qwen3_next", "granite4_h", "jamba", "bloom", "mpt", "falcon_rope", "falcon_alibi")  # fmt: skip
BY_DEFAULT = ("minicpm3", "lfm2", "bloom")


def opened(name: str, **settings: Any) -> Loaded:
    device_module._LOADED.clear()
    config = families()[name] | {"vocab_size": VOCABULARY}
    device = {"kind": "cpu", "dtype": "float32", "threads": 1, "kernels": "torch", "check": False} | settings
    found = load(OmegaConf.create(POOL | {"model": {"path": None, "config": config, "init_std": 0.2},
                                          "device": device}))  # fmt: skip
    device_module._LOADED.clear()
    return found


@pytest.mark.parametrize(
    "name",
    [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in families()],
)
def test_a_model_is_written_out_or_says_why_not(name: str) -> None:
    """Whoever is written out has been compared with the modules, weights turned: the reason says how closely."""
    facts = opened(name).facts
    assert facts["flattened"] or name in ASIDE, facts["flattened_reason"]
    assert facts["flattened_reason"]
    assert "\n" not in facts["flattened_reason"]


@pytest.mark.parametrize(
    "name", ["gpt_oss", "deepseek_v3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma3", "llama4"))]
)
def test_graphs_of_decodes_serve_windows_sinks_chunks_and_latents(name: str) -> None:
    taken = []

    def capture_first(runner: Any, batch: Any) -> None:
        if runner.graphs is None:
            runner.capture(4, 64, remembered)
            run = runner.graphs.run
            runner.graphs.run = lambda packed: taken.append(packed.lanes) or run(packed)

    def make(allocator: Any) -> Continuous:
        return Continuous(allocator, RESERVATIONS["on_demand"], max_model_len=64, watermark=0.0, max_num_seqs=4)

    served = serve(name, Paged(160, 64, block_size=4), make, kernels="torch", tamper=capture_first)
    assert relative(name, served) < 1e-4
    assert {3, 4} <= set(taken)


@pytest.mark.parametrize("allocator", [Contiguous, Paged], ids=["extents", "blocks"])
def test_a_warm_up_attends_to_slots_that_there_are(allocator: type[Allocator]) -> None:
    """Rows that nobody has say -1: an extent from there on has no keys, and sinks would stand alone."""
    runner = opened("gpt_oss").runner(allocator(128, 64))
    assert warm_up(runner, OmegaConf.create({"scheduler": {"max_num_batched_tokens": 64}})) == {}
    assert (runner.allocator.tables == -1).all()


@pytest.mark.parametrize(
    ("name", "apart", "match"),
    [("qwen3_next", False, "states of recurrent layers"), ("bloom", False, "own attention"),
     ("gemma3", True, "groups of layers")],
)  # fmt: skip
def test_graphs_step_aside_and_say_so(name: str, apart: bool, match: str) -> None:
    layout = probed_of(name).layout(4).within(64)
    runner = opened(name).runner(VllmHybrid(4096, 64, layout, 4) if apart else Paged(64, 64))
    facts = capture(runner, OmegaConf.create({"scheduler": {"max_num_seqs": 4}, "max_model_len": 64}))
    assert facts["cuda_graphs"] is False
    assert match in facts["cuda_graphs_reason"]
    assert runner.graphs is None


def test_prefixes_of_recurrent_models_are_refused_in_one_line() -> None:
    with pytest.raises(HarnessError, match=r"no state is kept for a prefix.*without prefix caching") as caught:
        opened("lfm2").runner(Paged(64, 64, enable_prefix_caching=True))
    assert "\n" not in str(caught.value)
