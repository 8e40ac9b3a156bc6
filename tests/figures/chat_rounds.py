"""How `experiments/data/chat_rounds.jsonl` was made: ``python tests/figures/chat_rounds.py > experiments/data/...``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

PIECE = 64  # tokens a hash id stands for
SYSTEM = 256  # tokens that every conversation begins with


def rows(sessions: int = 120, seed: int = 0) -> list[dict[str, Any]]:
    """Conversations that begin at random (one in 1.6 s), of about 4 rounds; a prompt is all that was said before.

    One conversation in three goes before the others, where a policy looks at priorities.
    """
    rng, said, fresh, start = np.random.default_rng(seed), list[dict[str, Any]](), SYSTEM // PIECE, 0.0
    for session in range(sessions):
        start += rng.exponential(1.6)
        at, length, ids = start, SYSTEM, list(range(SYSTEM // PIECE))
        for _ in range(1 + rng.geometric(0.25)):
            length += int(min(rng.lognormal(3.6, 0.9), 400)) + 4
            output = int(min(rng.exponential(180), 600)) + 8
            if length + output > 2048:
                break
            while len(ids) < -(-length // PIECE):
                ids.append(fresh)
                fresh += 1
            said.append({"arrival_s": round(at, 3), "prompt_len": length, "output_len": output,
                         "session": f"s{session}", "priority": int(session % 3 > 0), "hash_block": PIECE,
                         "hash_ids": list(ids)})  # fmt: skip
            del ids[length // PIECE :]  # a partial piece is another one when it is full
            length += output
            at += 0.05 * output + rng.exponential(15)
    return sorted(said, key=lambda row: row["arrival_s"])


def text() -> str:
    """The file."""
    return "".join(json.dumps({"id": i, **row}, separators=(",", ":")) + "\n" for i, row in enumerate(rows()))


if __name__ == "__main__":
    print(text(), end="")
