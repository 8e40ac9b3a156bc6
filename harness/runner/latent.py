"""Latents (MLA): a layer caches one compressed vector of a token and expands it into the K and V of every head.

Here nothing is expanded. A head's score of a token is ``q·(W_k c)``, which is ``(W_kᵀ q)·c``: the weights move to the
query, all heads attend to the latent itself as to one KV head, and what they read goes through ``W_v`` afterwards. So
the latent and its rotated part lie in the pool and are read once for all heads.
"""

from __future__ import annotations

from typing import Any

import torch

from harness.runner.attention import CURRENT, Latent


def absorb(model: Any) -> dict[int, Latent]:
    """Let latents reach the attention function unexpanded while a runner calls `model`; what expands them, by module.

    Only where ``expand_kv`` does what is said above: it is asked for random latents. What it does otherwise is left to
    it, and then refused by the probe.
    """
    found: dict[int, Latent] = {}
    with torch.inference_mode():
        for module in model.modules():
            latent = _latent_of(module)
            if latent is not None:
                found[id(module)] = latent
                if "expand_kv" not in vars(module):
                    module.expand_kv = _unexpanded(module.expand_kv)
    return found


def _unexpanded(expand: Any) -> Any:
    def expand_kv(latent: torch.Tensor, rotated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return expand(latent, rotated) if CURRENT.get() is None else (latent, rotated)

    return expand_kv


def _latent_of(module: torch.nn.Module) -> Latent | None:
    """The weights with which a module expands latents, if it does it in the way that we know."""
    expand, linear = getattr(module, "expand_kv", None), getattr(module, "kv_b_proj", None)
    sizes: list[Any] = [getattr(module, name, None) for name in ("qk_nope_head_dim", "v_head_dim", "qk_rope_head_dim")]
    if expand is None or not isinstance(linear, torch.nn.Linear) or not all(isinstance(size, int) for size in sizes):
        return None
    latent = Latent(linear, *sizes)
    device, dtype, tokens = linear.weight.device, linear.weight.dtype, 3
    random = torch.Generator().manual_seed(0)
    c, r = (torch.randn(1, 1, tokens, width, generator=random).to(device, dtype) for width in (latent.rank, sizes[2]))
    try:
        key, value = expand(c, r)
    except Exception:  # whatever it is, it is no expansion of these two
        return None
    keys, values = (torch.einsum("btr,hdr->bhtd", c[0], w) for w in (latent.key_weight, latent.value_weight))
    wanted = torch.cat([keys, r.expand(-1, keys.shape[1], -1, -1)], -1), values
    relative, absolute = (1e-3, 1e-4) if dtype == torch.float32 else (5e-2, 5e-2)
    alike = all(
        a.shape == b.shape and torch.allclose(a, b, relative, absolute)
        for a, b in zip((key, value), wanted, strict=True)
    )
    return latent if alike else None
