"""How many slots a request is promised at admission: R, in tokens that are stored (the last one never is)."""

from __future__ import annotations

from collections.abc import Callable

from schedulers.request import Request

Reservation = Callable[[Request, int], int]


def on_demand(request: Request, max_model_len: int) -> int:
    """Nothing: the sequence grows as it needs to (vLLM)."""
    return 0


def exact(request: Request, max_model_len: int) -> int:
    """Its true final length, which no real server knows (Orca Oracle)."""
    return request.prompt_len + min(request.output_len, max_model_len - request.prompt_len) - 1


def pow2(request: Request, max_model_len: int) -> int:
    """The output rounded up to a power of two (Orca Pow2: a true 25 becomes 32)."""
    return min(request.prompt_len + (1 << (request.output_len - 1).bit_length()), max_model_len) - 1


def max_tokens(request: Request, max_model_len: int) -> int:
    """What the client declared as its longest answer (the Orca paper's own rule)."""
    declared = max_model_len if request.max_tokens is None else request.max_tokens
    return request.prompt_len + min(declared, max_model_len - request.prompt_len) - 1


def max_model_len(request: Request, max_model_len: int) -> int:
    """The longest sequence the model takes (Orca Max, FasterTransformer)."""
    return max_model_len


RESERVATIONS: dict[str, Reservation] = {
    "on_demand": on_demand,
    "exact": exact,
    "pow2": pow2,
    "max_tokens": max_tokens,
    "max_model_len": max_model_len,
}
