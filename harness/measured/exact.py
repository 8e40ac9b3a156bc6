"""A closed loop served by the real scheduler and `Engine`, for runs whose pool may fill."""

from __future__ import annotations

import numpy as np

from allocators.paged import Paged
from harness.errors import HarnessError
from harness.measured.loop import CHUNKED, WHOLE, Loop
from harness.metrics.recorder import Recorder
from harness.operators.costs import Costs
from harness.operators.latency import OperatorLatency
from harness.replay.clock import Clock
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.runner.simulated import SimulatedModelRunner
from harness.workload import Workload
from schedulers.request import Request
from schedulers.reservation import exact, on_demand
from schedulers.vllm_v1 import VllmV1


def serve_exactly(loop: Loop, costs: Costs, prompts: np.ndarray, outputs: np.ndarray
                  ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:  # fmt: skip
    """As `loop.serve`, and the number of preemptions. Blocks are allocated as a sequence grows (vLLM), or reserved at
    admission (TensorRT-LLM's GUARANTEED_NO_EVICT).

    Raises:
        HarnessError: no scheduler in `schedulers/` fits the loop, or a request never fits the pool.
    """
    if loop.kind not in (CHUNKED, WHOLE) or loop.engines > 1 or loop.wait_steps:
        raise HarnessError("only one engine without a batch wait is served by the scheduler itself")
    longest = int((prompts + outputs).max())
    blocks = loop.blocks or int((-(-(prompts + outputs) // loop.block)).sum())
    allocator = Paged(blocks * loop.block, max_model_len=longest, block_size=loop.block)
    reservation = exact if loop.kind == WHOLE else on_demand
    scheduler = VllmV1(allocator, reservation, max_model_len=longest, max_num_seqs=loop.lanes,
                       max_num_batched_tokens=loop.budget, chunked_prefill=loop.kind == CHUNKED)  # fmt: skip
    requests = [Request(i, 0, int(p), int(o)) for i, (p, o) in enumerate(zip(prompts, outputs, strict=True))]
    recorder = Recorder(None, keep=False)
    engine = Engine(scheduler, SimulatedModelRunner(OperatorLatency(costs)), recorder, depth=loop.ahead)
    source = Tokenized(requests, loop)
    replay(source, [engine], Clock())
    if recorder.rejections:
        number, reason = next(iter(recorder.rejections.items()))
        raise HarnessError(f"request {number} can't be served: {reason}")
    from harness.metrics.requests import request_table

    table = request_table(recorder, requests)
    arrivals = np.array([request.arrival_ns for request in requests], float)
    first = arrivals + table["ttft_ms"].to_numpy() * 1e6
    last = arrivals + table["e2e_ms"].to_numpy() * 1e6
    sent = np.array([source.sent[request.id] for request in requests], float)
    return sent, first, last, int(table["preemptions"].sum())


class Tokenized(Source):
    """The loop's clients, whose prompts are tokenized one after the other.

    Attributes:
        sent: when each request was sent (ns), by its id.
    """

    def __init__(self, requests: list[Request], loop: Loop) -> None:
        self.sent: dict[int, int] = {}
        self.loop, self.front = loop, 0
        super().__init__(Workload(requests, concurrency=loop.clients))

    def arrival_ns(self, request: Request, sent: int) -> int:
        """When it arrives at the engine."""
        self.sent[request.id] = sent
        self.front = max(self.front, sent) + round(self.loop.tokenize * request.prompt_len)
        return self.front + round(self.loop.client)
