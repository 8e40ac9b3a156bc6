"""Which model runs: a config with seeded random weights, or real weights from a folder or a hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from harness.errors import HarnessError


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
            config = json.loads(Path(config).read_text(encoding="utf-8"))
        plain: Any = OmegaConf.to_container(config, resolve=True) if OmegaConf.is_config(config) else config
        values = {key: value for key, value in dict(plain).items() if key != "model_type"}
        return AutoConfig.for_model(config["model_type"], **values)
    except HarnessError:
        raise
    except Exception as error:
        where = f"model.path={path}" if path else f"model.config={config if isinstance(config, str) else '{...}'}"
        raise HarnessError(f"{where}: no model config could be read from it: {_told(error)}") from error


def plain_config(model: Any) -> Any:
    """As `read_config`. A config written out is taken as it is: `transformers` takes seconds to import."""
    values: Any = OmegaConf.to_container(model, resolve=True)
    config = values.get("config")
    plain = not values.get("path") and isinstance(config, Mapping) and "hidden_size" in config
    return config if plain else read_config(values)


def positions_of(config: Any) -> int | None:
    """How many positions a model has; None where it sets no limit."""
    try:
        text = config.get_text_config()
        return getattr(text, "max_position_embeddings", None) or getattr(text, "max_seq_len", None)
    except NotImplementedError:  # how some say that they have none
        return None


def build_model(model: Mapping[str, Any], config: Any, device: Any, dtype: Any, seed: int) -> Any:
    """The model in eval mode on `device`, its attention replaced by ours if it lets it be.

    Raises:
        HarnessError: the weights can't be reached, the architecture has no causal LM, or its config makes no model.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from harness.runner.refusals import refuse_tokens

    path = model.get("path")
    try:
        refuse_tokens(config)
        if path:
            built = _ours_or_its_own(
                lambda name: AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=name)
            )
        else:
            config.initializer_range = config.init_std = model["init_std"]
            on_cuda = [device] if device.type == "cuda" else []
            with torch.random.fork_rng(devices=on_cuda), device:
                torch.manual_seed(seed)
                built = _ours_or_its_own(
                    lambda name: AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=name)
                )
    except HarnessError:
        raise
    except (OSError, ValueError, ImportError) as error:
        raise HarnessError(f"model {path or config.model_type} can't be loaded: {_first_line(error)}") from error
    except Exception as error:  # what a config makes of a model that does not check it
        told = f"{type(error).__name__}: {_first_line(error)}"
        raise HarnessError(f"model {path or config.model_type} can't be built from its config: {told}") from error
    return built.to(device).eval().requires_grad_(False)


def _ours_or_its_own(build: Callable[[str], Any]) -> Any:
    """A model with our attention; with its own where it chooses that among classes (see `harness.runner.dense`)."""
    from harness.runner.attention import NAME
    from harness.runner.dense import OWN

    try:
        return build(NAME)
    except KeyError as error:
        if error.args != (NAME,):
            raise
        return build(OWN)


def column_major_weights(model: Any) -> None:
    """Store the weights of linear layers in column-major order; their shapes stay.

    A float32 product of few rows with a row-major matrix, as in `torch.nn.Linear`, spends up to half of its time on
    transposing the matrix. A matrix that is also an embedding stays row-major, because rows are looked up in it.
    """
    import torch

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and id(module.weight) not in embeddings:
            module.weight.data = module.weight.data.t().contiguous().t()


def _told(error: BaseException) -> str:
    """What `transformers` says, without the names of all 500 architectures that it knows."""
    return _first_line(error).partition(". Should contain one of")[0]


def _first_line(error: BaseException) -> str:
    """What an error says in one line; where that only announces the next, with the next."""
    lines = str(error).strip().split("\n")
    return " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")]) or type(error).__name__
