"""A closed loop of clients around one engine, or several in lockstep, if memory is never the limit.

It makes the same decisions as the schedulers in `schedulers/` with `harness.replay.engine` when no request is ever
refused a block: no sequence has to be looked at to know which ones decode, so a step's work does not grow with the
batch. Tests compare both to the nanosecond. If the pool may fill, those schedulers are used instead (`exact.py`).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from kvlab_kernels.cached import cached_njit

from harness.operators import costs as step_costs
from harness.operators.costs import Costs, lockstep_ns

CHUNKED, WHOLE, PROMPTS_FIRST = range(3)


class Loop(NamedTuple):
    """An engine's loop and its clients.

    Attributes:
        kind: `CHUNKED` (vLLM: decodes first, then prompts in pieces, in one token budget), `WHOLE` (TensorRT-LLM: the
            same, but prompts whole) or `PROMPTS_FIRST` (SGLang: a step has prompts, in pieces, or decodes).
        budget: tokens of a step.
        lanes: most sequences of an engine.
        ahead: steps in flight, scheduled before the first of them has completed (2 = asynchronous).
        blocks, block: number and size of an engine's blocks, reserved in full at admission. 0 blocks = no limit.
        client, tokenize: ns from sending to arrival: per request, and per token of its prompt; prompts are tokenized
            one after the other.
        wait_steps, wait_tokens: a step with decodes leaves prompts waiting for that many steps, or until it would have
            that many tokens (TensorRT-LLM's batch_wait_timeout_iters, batch_wait_max_tokens_ratio x max_num_tokens).
        balance_steps: while each engine has decodes, prompts wait up to that many steps until every engine has some
            (TensorRT-LLM's attention_dp_config, enable_balance and timeout_iters).
        poll_steps: arrivals are received only after that many decode steps, and after each step with a prompt (SGLang's
            scheduler_recv_interval); 0 = always.
        grows: tokens that a decode step adds to each sequence, on average (more than one with drafts).
        engines: number of engines in lockstep.
        clients: requests in flight.
    """

    kind: int
    budget: int
    lanes: int
    ahead: int = 2
    blocks: int = 0
    block: int = 16
    client: float = 0.0
    tokenize: float = 0.0
    wait_steps: int = 0
    wait_tokens: float = 0.0
    balance_steps: int = 0
    poll_steps: int = 0
    grows: float = 1.0
    engines: int = 1
    clients: int = 1


@cached_njit(calls=step_costs)
def serve(
    loop: Loop, costs: Costs, prompts: np.ndarray, outputs: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Serve every request: (sent, first token, last token), ns, by request.

    Args:
        prompts, outputs: ``[requests]`` tokens and steps; `clients` of them are sent at 0, each other when one ends.
    """
    n, engines = len(prompts), loop.engines
    sent, first, last = np.zeros(n), np.full(n, -1.0), np.full(n, -1.0)
    home = np.zeros(n, np.int64)
    queue = np.zeros((engines, n), np.int64)  # who waits, by engine
    head, tail = np.zeros(engines, np.int64), np.zeros(engines, np.int64)
    part, stored = np.full(engines, -1), np.zeros(n, np.int64)  # whose prompt is half done, and how far
    running, held = np.zeros(engines, np.int64), np.zeros(engines, np.int64)
    decodes, context = np.zeros(engines, np.int64), np.zeros(engines)
    released = np.zeros(n, np.int64)  # who is over, in order
    freed = over = arrived = 0
    injected = min(loop.clients, n)
    reached, front = np.zeros(n), 0.0  # when a request is at its engine; when the process in front of them is free
    for i in range(injected):
        front += np.rint(loop.tokenize * prompts[i])
        reached[i] = front + loop.client
    ends = [(np.int64(0), np.int64(0)) for _ in range(0)]  # (decode step, request)
    counter = np.int64(0)
    now = busy = before = 0.0  # now; when the last step ends, and the one before
    waited = turn = unbalanced = 0
    polled = loop.poll_steps
    work = np.zeros((engines, 6))
    done = np.zeros(n, np.int64)  # prompts completed in this step
    while over < n or freed < n:
        while freed < over and last[released[freed]] <= now:
            who = released[freed]
            running[home[who]] -= 1
            held[home[who]] -= -(-(prompts[who] + int(outputs[who] * loop.grows)) // loop.block)
            freed += 1
        looks = polled >= loop.poll_steps
        if looks:
            polled = 0
        while looks and arrived < injected and reached[arrived] <= now:
            best = turn % engines
            for at in range(engines):
                other = (turn + at) % engines
                score = 4 * (tail[other] - head[other]) + running[other]
                if score < 4 * (tail[best] - head[best]) + running[best]:
                    best = other
            turn += 1
            home[arrived] = best
            queue[best, tail[best]] = arrived
            tail[best] += 1
            arrived += 1
        work[:] = 0.0
        completed = chunks = 0
        decoding = decodes.sum() > 0
        ready_tokens = 0.0  # of the batch wait
        unbalanced = _unbalanced(unbalanced, loop, tail - head, running, decodes)
        for at in range(engines):
            lanes = 0 if loop.kind == PROMPTS_FIRST else decodes[at]
            budget = 0 if unbalanced else loop.budget - lanes
            if loop.kind == WHOLE and loop.wait_steps > 0 and lanes > 0:
                ready_tokens, peek, left = float(lanes), head[at], budget
                while peek < tail[at] and prompts[queue[at, peek]] <= left:
                    ready_tokens += prompts[queue[at, peek]]
                    left -= prompts[queue[at, peek]]
                    peek += 1
                if peek > head[at]:
                    if waited < loop.wait_steps and ready_tokens < loop.wait_tokens:
                        waited += 1
                        continue
                    waited = 0
            while budget > 0:
                who = part[at]
                if who < 0:
                    if head[at] == tail[at] or running[at] >= loop.lanes:
                        break
                    who = queue[at, head[at]]
                    if loop.kind == WHOLE and prompts[who] > budget:
                        break
                    need = -(-(prompts[who] + int(outputs[who] * loop.grows)) // loop.block)
                    if loop.blocks > 0 and held[at] + need > loop.blocks:
                        break
                    head[at] += 1
                    running[at] += 1
                    held[at] += need
                count = min(prompts[who] - stored[who], budget)
                stored[who] += count
                budget -= count
                if count == 1:  # as any other decode
                    work[at, 0] += 1
                    work[at, 1] += stored[who]
                else:
                    work[at, 2] += 1
                    work[at, 3] += count
                    work[at, 4] += stored[who]
                    work[at, 5] += count * (2 * stored[who] - count) // 2
                chunks += 1
                part[at] = -1
                if stored[who] < prompts[who]:
                    part[at] = who
                    break
                done[completed] = who
                completed += 1
        decoding = decoding and (loop.kind != PROMPTS_FIRST or chunks == 0)
        if not decoding and chunks == 0:  # nothing can run: until a step lands, or somebody arrives
            later = np.inf
            if busy > now:
                later = before if before > now else busy
            if arrived < injected:
                later = min(later, reached[arrived])
            if later == np.inf:
                break
            now, polled = later, loop.poll_steps
            continue
        polled = loop.poll_steps if chunks else polled + 1
        if decoding:
            counter += 1
            for at in range(engines):
                context[at] += decodes[at] * loop.grows
                work[at, 0] += decodes[at]
                work[at, 1] += context[at]
        ready = max(now, busy) + np.rint(lockstep_ns(costs, work))
        for i in range(completed):
            who = done[i]
            first[who] = ready
            if outputs[who] > 1:
                decodes[home[who]] += 1
                context[home[who]] += prompts[who]
                heappush(ends, (counter + outputs[who] - 1, who))
        fresh = over
        if decoding:
            while len(ends) > 0 and ends[0][0] <= counter:
                _, who = heappop(ends)
                decodes[home[who]] -= 1
                context[home[who]] -= prompts[who] + (outputs[who] - 1) * loop.grows
                last[who] = ready
                released[over] = who
                over += 1
        for i in range(completed):
            who = done[i]
            if outputs[who] == 1:
                last[who] = ready
                released[over] = who
                over += 1
        for _ in range(over - fresh):
            if injected < n:
                sent[injected] = ready
                front = max(front, ready) + np.rint(loop.tokenize * prompts[injected])
                reached[injected] = front + loop.client
                injected += 1
        before, busy = busy, ready
        now = ready if loop.ahead == 1 else max(now, before)
    return sent, first, last


@cached_njit()
def _unbalanced(steps: int, loop: Loop, waiting: np.ndarray, running: np.ndarray, decodes: np.ndarray) -> int:
    """For how many steps prompts have been held back because some engine has none; 0 = they run."""
    if loop.balance_steps == 0 or loop.engines == 1 or waiting.max() == 0 or decodes.min() == 0:
        return 0
    if (waiting.min() > 0 and running.max() < loop.lanes) or steps + 1 >= loop.balance_steps:
        return 0
    return steps + 1
