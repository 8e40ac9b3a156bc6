"""Which model runs: a config with seeded random weights, or real weights from a folder or a hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.errors import HarnessError


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a runner needs to know of a model."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_positions: int


def read_config(model: Mapping[str, Any]) -> Any:
    """The `transformers` config that `model` describes.

    Args:
        model: the config group: `path` (folder or hub name) wins over `config` (a mapping, or a JSON file).

    Raises:
        HarnessError: it can't be read, reached or understood.
    """
    from transformers import AutoConfig

    path: str | None = model.get("path")
    config: Any = model.get("config")
    try:
        if path:
            return AutoConfig.from_pretrained(path)
        if isinstance(config, str):
            config = json.loads(Path(config).read_text())
        plain: Any = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
        values = {key: value for key, value in dict(plain).items() if key != "model_type"}
        return AutoConfig.for_model(config["model_type"], **values)
    except HarnessError:
        raise
    except Exception as error:
        where = f"model.path={path}" if path else f"model.config={config if isinstance(config, str) else '{...}'}"
        raise HarnessError(f"{where}: no model config could be read from it: {_first_line(error)}") from error


def shape_of(config: Any) -> ModelShape:
    """The shape of a causal LM, from the names that `transformers` configs use."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    positions = getattr(text, "max_position_embeddings", None) or 1 << 30
    return ModelShape(text.num_hidden_layers, kv_heads, head_dim, text.vocab_size, positions)


def build_model(model: Mapping[str, Any], config: Any, device: Any, dtype: Any, seed: int) -> Any:
    """The model in eval mode on `device`, its attention replaced by ours.

    Raises:
        HarnessError: the weights can't be reached, or the architecture has no causal LM.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from harness.runner.attention import NAME

    path = model.get("path")
    try:
        if path:
            built = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=NAME)
        else:
            config.initializer_range = config.init_std = model["init_std"]
            on_cuda = [device] if device.type == "cuda" else []
            with torch.random.fork_rng(devices=on_cuda), device:
                torch.manual_seed(seed)
                built = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=NAME)
    except (OSError, ValueError, ImportError) as error:
        raise HarnessError(f"model {path or config.model_type} can't be loaded: {_first_line(error)}") from error
    return built.to(device).eval().requires_grad_(False)


def turn_weights(model: Any) -> None:
    """Store the weights of linear layers column by column; their shapes stay.

    A float32 product of few rows with a matrix stored row by row, as `torch.nn.Linear` keeps it, spends up to half of
    its time on turning that matrix. A matrix that is also an embedding stays: rows are looked up in it.
    """
    import torch

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and id(module.weight) not in embeddings:
            module.weight.data = module.weight.data.t().contiguous().t()


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
