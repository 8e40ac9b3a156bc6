"""Pool geometries that the engine computed, and the same of ours, in the words of its files.

A `*.json` is a model: its config, and what the engine made of it under several settings. A line of
`grouping_cases.jsonl` is a made-up list of layers.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from allocators.layout import State
from allocators.vllm_groups import Engine, Group, Spec, form, specs_of
from allocators.vllm_pool import Geometry
from harness.layout import layout_of

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
NAMES = {"full_attention": "full", "mla_attention": "mla", "sliding_window": "sliding", "mamba": "mamba",
         "chunked_local_attention": "chunked"}  # fmt: skip
CLASSES = {"FullAttention": "full", "MLAAttention": "mla", "SlidingWindow": "sliding", "Mamba": "mamba",
           "ChunkedLocalAttention": "chunked"}  # fmt: skip


def model_geometry(config: dict[str, Any], variant: dict[str, Any], name: str) -> tuple[list[Spec], Geometry]:
    """Ours, for a model under the settings of a variant."""
    asked = variant["settings"]
    kv_bytes = 1 if asked["kv_cache_dtype"].startswith("fp8") else None
    layout = layout_of(config, BYTES[asked["model_dtype"]], kv_bytes)
    engine = Engine(
        variant["engine_args"].get("block_size", 16), asked["max_model_len"], asked["max_in_flight_tokens"],
        asked["enable_prefix_caching"], not asked["disable_hybrid_kv_cache_manager"],
        exports=not name.startswith("ampere"), block_outermost=variant["layout"] == "BLNHC",
    )  # fmt: skip
    return specs_of(layout, engine), Geometry.of(layout, engine)


def their_layers(variant: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Of each layer by its name: which of the specs it has, and which of that spec's layers it is."""
    specs = variant["specs_before_grouping"]
    return {layer: (at, i) for at, spec in enumerate(specs) for i, layer in enumerate(spec["layers"])}


def our_layers(specs: list[Spec]) -> list[tuple[int, int]]:
    seen: dict[Spec, int] = {}
    kinds = list(dict.fromkeys(specs))
    places = []
    for spec in specs:
        places.append((kinds.index(spec), seen.get(spec, 0)))
        seen[spec] = seen.get(spec, 0) + 1
    return places


def our_figures(specs: list[Spec], pool: Geometry, sizes: list[int]) -> dict[str, Any]:
    """What a file says of a variant, of ours."""
    places = our_layers(specs)
    blocks = pool.request_blocks()
    return {
        "groups": [
            {
                "kind": group.spec.kind,
                "block_size": group.spec.block_size,
                "reach": group.spec.reach,
                "page_bytes": group.spec.page,
                "real_page_bytes": group.spec.real,
                "mixed": len(group.pages) > 1,
                "layers": [places[at] for at in group.layers],
                "real_bytes_per_block": group.real,
                "padding_share": round(1 - group.real / pool.block_bytes, 6),
                "blocks_per_max_len_request": count,
                "checkpoints": group.spec.checkpoints,
                "grid": group.spec.grid or None,
            }
            for group, count in zip(pool.groups, blocks, strict=True)
        ],
        "bytes_per_block": pool.block_bytes,
        "layers_per_group": [len(group.layers) for group in pool.groups],
        "padding_layers": pool.padding_layers,
        "padding_share_one_block_of_each_group": round(pool.padding, 6),
        "padding_share_at_max_len": round(pool.padding_at_max_len, 6),
        "blocks_per_max_len_request": sum(blocks),
        "bytes_needed_for_one_max_len_request": sum(blocks) * pool.block_bytes,
        "engine_block_size_after": pool.smallest,
        "scheduler_block_size": pool.scheduler_block,
        "hash_block_size": pool.hash_unit,
        "cache_hit_alignment_tokens": pool.alignment,
        "pools": {size: _pool(pool, size) for size in sizes},
    }


def their_figures(variant: dict[str, Any]) -> dict[str, Any]:
    """The same of a file's variant."""
    places = their_layers(variant)
    longest = f"{variant['settings']['max_model_len']:,}"
    figures: dict[str, Any] = {
        "groups": [
            {
                "kind": NAMES[group["spec"]["kind"]],
                "block_size": group["spec"]["block_size"],
                "reach": _reach(group["spec"]),
                "page_bytes": group["spec"]["page_bytes"],
                "real_page_bytes": group["spec"]["real_page_bytes"],
                "mixed": group["mixed"],
                "layers": [places[layer] for layer in group["layers"]],
                "real_bytes_per_block": group["real_bytes_per_block"],
                "padding_share": group["padding_share"],
                "blocks_per_max_len_request": group["blocks_per_max_len_request"],
                "checkpoints": group["spec"].get("num_prefill_checkpoint_blocks", 0),
                "grid": group["spec"].get("prefill_checkpoint_alignment"),
            }
            for group in variant["groups"]
        ]
    }
    figures |= {key: variant[key] for key in our_keys() if key in variant}
    figures["pools"] = {
        int(size): (told["needed_gib_as_reported"], told["estimated_max_model_len"])
        if told.get("refused")
        else (
            told["num_blocks"],
            told["unused_bytes"],
            told["max_concurrency"],
            f"GPU KV cache size: {told['kv_cache_size_tokens']:,} tokens",
            f"Maximum concurrency for {longest} tokens per request: {told['max_concurrency_logged']}",
        )
        for size, told in variant["pools"].items()
    }
    return figures


def _reach(spec: dict[str, Any]) -> int:
    """Of a layer that gives back what lies behind it; one that keeps all may still read a window only."""
    if spec["kind"] == "full_attention":
        return 0
    return spec.get("sliding_window") or spec.get("attention_chunk_size") or 0


def our_keys() -> list[str]:
    return ["bytes_per_block", "layers_per_group", "padding_layers", "padding_share_one_block_of_each_group",
            "padding_share_at_max_len", "blocks_per_max_len_request", "bytes_needed_for_one_max_len_request",
            "engine_block_size_after", "scheduler_block_size", "hash_block_size",
            "cache_hit_alignment_tokens"]  # fmt: skip


def _pool(pool: Geometry, size: int) -> tuple[Any, ...]:
    refusal = pool.refusal(size)
    if refusal:
        return round(refusal[0] / 2**30, 2), refusal[1]
    return (pool.num_blocks(size), size - pool.num_blocks(size) * pool.block_bytes, pool.concurrency(size),
            *pool.log_lines(size))  # fmt: skip


def case_geometry(case: dict[str, Any]) -> Geometry:
    """Ours, for a made-up list of layers.

    Raises:
        ValueError: the layers can't be served together.
    """
    engine = Engine(
        case["block_size"], case["max_model_len"], case["max_in_flight_tokens"], hybrid=case["hybrid_manager"],
        block_outermost=case["layout"] == "BLNHC",
    )  # fmt: skip
    specs = [_layer(layer, engine) for layer in case["layers"]]
    return Geometry(tuple(form(specs, engine)), engine)


def _layer(layer: dict[str, Any], engine: Engine) -> Spec:
    """A made-up layer; 8 heads of 128 and 2 bytes unless it says otherwise, or a latent of 576."""
    kind, size = layer["kind"], layer.get("block_size", engine.block_size)
    if kind == "mamba":
        states = tuple(State(tuple(s), b) for s, b in zip(layer["shapes"], layer["state_bytes"], strict=True))
        align = layer.get("mode") == "align"
        return Spec(
            kind, size if align else engine.max_model_len, state_bytes=sum(s.bytes for s in states), shape=states,
            padded=layer.get("padded", 0), align=align, checkpoints=layer.get("checkpoint_blocks", 0),
        )  # fmt: skip
    if kind == "mla":
        heads, width, value = 1, layer.get("head_size", 576), 0
    else:
        heads, width = layer.get("kv_heads", 8), layer.get("head_size", 128)
        value = layer.get("head_size_v", width)
    shape = (heads, width, value, layer.get("bytes", 2))
    token = prod((heads, width + value, layer.get("bytes", 2)))
    return Spec(kind, size, token, reach=layer.get("window") or layer.get("chunk") or 0, shape=shape)


def our_case(case: dict[str, Any]) -> dict[str, Any]:
    """What a line says of its layers, of ours."""
    try:
        pool = case_geometry(case)
    except ValueError as error:
        return {"error": type(error).__name__}
    available = case["available_bytes"]
    return {
        "groups": [_told(group) for group in pool.groups],
        "bytes_per_block": pool.block_bytes,
        "num_blocks": pool.num_blocks(available),
        "kv_cache_size_tokens": int(pool.concurrency(available) * case["max_model_len"]),
        "max_concurrency": pool.concurrency(available),
        "scheduler_block_size": pool.scheduler_block,
        "hash_block_size": pool.hash_unit,
    }


def _told(group: Group) -> dict[str, Any]:
    kind = next(name for name, kind in CLASSES.items() if kind == group.spec.kind)
    return {
        "kind": kind,
        "layers": list(group.layers),
        "block_size": group.spec.block_size,
        "page_bytes": list(group.pages),
        "page_size_padded": group.spec.padded or None,
    }


def folder_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Models, and lists of made-up layers."""
    return sorted(folder.glob("*.json")), sorted(folder.glob("*.jsonl"))
