"""Does the placement of the KV cache change the model's outputs on this device? Many placements serve equal requests.

Prompts are computed in chunks, outputs are samples, beams and single ones, and the pools are so small that sequences
are swapped out, recomputed, moved and evicted. In float32 none of this may change a token, except for close calls: the
order of a sum depends on the batch, so a near tie between two tokens may be decided the other way, and the rest of that
output then differs. A wrong slot would change most outputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from harness.devices import open_device
from harness.errors import HarnessError
from harness.job.build import build_scheduler
from harness.metrics.recorder import Recorder
from harness.replay.clock import CLOCKS
from harness.replay.engine import Engine
from harness.replay.replayer import Source, replay
from harness.workload import build_workload

COMMON = (
    "model=llama_mini", "device.dtype=float32", "max_model_len=256", "workload=alpaca", "workload.fit=scale",
    "scheduler.chunked_prefill=true", "scheduler.max_num_batched_tokens=96", "scheduler.max_num_seqs=48",
    "workload.shared_prefix=24",
)  # fmt: skip
SYSTEMS = {
    "paged": ("kv_slots=8192",),
    "paged, few slots, recompute": ("kv_slots=768", "scheduler.watermark=0"),
    "paged, few slots, swap": ("kv_slots=768", "scheduler.watermark=0", "scheduler.preemption=swap",
                               "allocator.host_slots=4096"),
    "paged, prefix caching": ("kv_slots=1024", "allocator.enable_prefix_caching=true"),
    "radix": ("kv_slots=768", "allocator=radix"),
    "virtual": ("kv_slots=1024", "allocator=virtual", "allocator.page_tokens=32"),
    "extents, compaction": ("kv_slots=1024", "system=first_fit_compacting+exact"),
    "buddy": ("kv_slots=1024", "system=buddy+exact"),
}  # fmt: skip
REQUESTS = {
    "single": (),
    "samples": ("workload.n=3",),
    "beams": ("workload.n=3", "workload.use_beam_search=true"),
}
MIN_EQUAL_PCT = 80.0  # of the outputs


def check_same_outputs(experiments: Path, requests: int, kind: str) -> pd.DataFrame:
    """One row for each system and kind of request: how many outputs equal those of the first system.

    Args:
        experiments: the folder of configurations.
        requests: number of requests of each kind.
        kind: `device.kind`.

    Raises:
        HarnessError: too many outputs differ.
    """
    rows = []
    for asked, more in REQUESTS.items():
        first: dict[int, list[list[int]]] = {}
        for system, settings in SYSTEMS.items():
            overrides = [*COMMON, *settings, *more, f"workload.num_requests={requests}", f"device.kind={kind}"]
            with initialize_config_dir(str(experiments), version_base="1.3"):
                outputs, preemptions = _outputs(compose("config", overrides=overrides))
            first = first or outputs
            pairs = [(a, b) for i in first for a, b in zip(first[i], outputs.get(i, []), strict=False)]
            equal = sum(a == b for a, b in pairs)
            wanted = sum(map(len, first.values()))
            rows.append({"asked": asked, "system": system, "answers": wanted, "equal": equal,
                         "equal_pct": 100 * equal / wanted, "preemptions": preemptions})  # fmt: skip
    table = pd.DataFrame(rows)
    wrong = table[table["equal_pct"] < MIN_EQUAL_PCT]
    if len(wrong):
        raise HarnessError(f"answers depend on the placement:\n{wrong.to_string(index=False)}")
    return table


def _outputs(cfg: Any) -> tuple[dict[int, list[list[int]]], int]:
    """Each request's outputs, sorted, and the number of preemptions."""
    settings: Any = OmegaConf.to_container(cfg.workload, resolve=True)
    workload = build_workload(settings, cfg.max_model_len, cfg.seed)
    device = open_device(cfg)
    scheduler, recorder = build_scheduler(cfg, device.capacity, layout=device.layout), Recorder()
    engine = Engine(scheduler, device.runner(scheduler.allocator), recorder)
    replay(Source(workload), [engine], CLOCKS["measured"]())
    outputs = {i: sorted(list(each.outputs) for each in seq.members) for i, seq in sorted(recorder.sequences.items())}
    return outputs, sum(seq.preemptions for seq in recorder.sequences.values())
