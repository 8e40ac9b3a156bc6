"""How many tokens an answer will have, as far as somebody knows before it ends: what orders and admits by length."""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque

import numpy as np
import numpy.typing as npt

from schedulers.request import Request

UNKNOWN = 512  # tokens expected of an answer before any has ended, where the client declared nothing


class Oracle:
    """The true length, which no server knows.

    Attributes:
        learns: whether what is expected of a request depends on who finished before it came.
    """

    learns = False

    def expect(self, request: Request) -> int:
        """Output tokens expected of a request that has just arrived, >= 1."""
        return request.output_len

    def observe(self, request: Request) -> None:
        """A request has finished with `request.output_len` tokens."""


class Noisy(Oracle):
    """The true length times a lognormal error, drawn once per request: a predictor whose quality is known.

    Args:
        sigma: standard deviation of the error's logarithm, >= 0; with 0.7, half of the guesses are off by over 1.6 ×.
        seed: of the errors, with the request's id.
    """

    def __init__(self, sigma: float, seed: int) -> None:
        if not 0 <= sigma < float("inf"):
            raise ValueError(f"scheduler.length_predictor=noisy:{sigma}: must be a number >= 0 after the colon")
        self.sigma, self.seed = sigma, seed

    def expect(self, request: Request) -> int:
        error = np.random.default_rng((self.seed, request.id, 0x1E57)).standard_normal()
        guess = max(round(request.output_len * float(np.exp(self.sigma * error))), 1)
        return guess if request.max_tokens is None else min(guess, request.max_tokens)


class ByHistory(Oracle):
    """The mean of answers that have ended: to the same session, else to prompts of like length, else to all.

    Like are prompts between the same two powers of two. Nobody's answer is longer than its client's cap.
    """

    learns = True

    def __init__(self) -> None:
        self._count: Counter[object] = Counter()
        self._tokens: Counter[object] = Counter()

    def expect(self, request: Request) -> int:
        known = next((key for key in _kinds(request) if self._count[key]), None)
        guess = UNKNOWN if known is None else round(self._tokens[known] / self._count[known])
        if request.max_tokens is None:
            return guess
        return request.max_tokens if known is None else min(guess, request.max_tokens)

    def observe(self, request: Request) -> None:
        for key in _kinds(request):
            self._count[key] += 1
            self._tokens[key] += request.output_len


def _kinds(request: Request) -> list[object]:
    """What a request is like, the most telling first."""
    return ([request.session] if request.session else []) + [request.prompt_len.bit_length(), "all"]


def predictor(name: str, seed: int) -> Oracle:
    """`oracle`, `history`, or `noisy:SIGMA`. Raises ValueError for anything else."""
    kind, _, number = str(name).partition(":")
    if kind == "noisy":
        try:
            return Noisy(float(number), seed)
        except ValueError as error:
            raise ValueError(f"scheduler.length_predictor={name}: write noisy:SIGMA, as in noisy:0.5") from error
    if name not in ("oracle", "history"):
        raise ValueError(f"scheduler.length_predictor must be oracle, history or noisy:SIGMA, got {name!r}")
    return Oracle() if name == "oracle" else ByHistory()


class Window:
    """The lengths of the latest answers, and what they say of one that has so many tokens already.

    Args:
        size: answers that are remembered, >= 1.
        initial: the length that half of the window is filled with before any answer has ended, tokens.
    """

    def __init__(self, size: int = 1000, initial: int = UNKNOWN) -> None:
        if size < 1 or initial < 1:
            raise ValueError(f"scheduler.window and initial_output_len must be at least 1, got {size} and {initial}")
        self._latest = deque([initial] * max(size // 2, 1), maxlen=size)
        self._sorted = sorted(self._latest)

    def observe(self, length: int) -> None:
        """An answer has ended with `length` tokens; the oldest is forgotten where the window is full."""
        if len(self._latest) == self._latest.maxlen:
            self._sorted.remove(self._latest[0])
        self._latest.append(length)
        insort(self._sorted, length)

    def sample(self, produced: npt.NDArray[np.int64], caps: npt.NDArray[np.int64],
               draws: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:  # fmt: skip
        """Whole lengths of answers, each drawn from those longer than what it has, between which it is interpolated.

        Args:
            produced: ``[n]`` tokens that each answer has.
            caps: ``[n]`` the most that each may have, > produced; the end of its distribution.
            draws: ``[k, n]`` uniform in [0, 1).

        Returns:
            ``[k, n]`` int64, each in produced + 1 ... cap.
        """
        known = np.array(self._sorted, dtype=np.float64)
        below = np.searchsorted(known, produced, side="right")  # those are over already, so they say nothing
        at = draws * (len(known) - below + 1)
        step = at.astype(np.int64)
        left, right = below + step - 1, below + step
        low = np.where(step == 0, produced, known[np.maximum(left, 0)])
        high = np.where(right < len(known), known[np.minimum(right, len(known) - 1)], np.maximum(caps, low))
        length = np.rint(low + (high - low) * (at - step)).astype(np.int64)
        return np.clip(length, produced + 1, caps)
