"""The keys of experiments that do something else than serve a workload, and of the words that experiments share."""

from __future__ import annotations

from harness.config.key import Key, without
from harness.config.keys.run import PUBLISHED, RULES, stems
from harness.config.kinds import Choice, Either, Many, Named, Number, Switch, Table, Text, Whole

COUNT = Whole(1, 2**31 - 1)
SIZES = Many(COUNT, some=True)
SPREAD = ("mean", "p50", "p90", "p95", "p99")
METRICS = ("normalized_latency_mean_s", "waiting_age_max_s", "waiting_age_mean_s", "itl_max_ms", "recomputed_pct",
           *(f"{name}_{key}_ms" for name in ("ttft", "tpot", "e2e", "queueing", "itl") for key in SPREAD))  # fmt: skip

TASKS = [
    Key("search.metric", Choice(*METRICS), "what a rate is judged by: a key of `summary.json`"),
    Key("search.limit", Number(above=0), "the most that the metric may be", "s or ms, as the metric"),
    Key("search.tolerance", Number(above=0, below=1), "relative width of the bracket in which the capacity lies"),
    Key("search.start", Number(above=0), "the first rate; null = what is served of a burst", "requests per second",
        null=True),
    Key("search.burst", Whole(1, 100_000_000), "requests of that burst", "requests", when=(without("search.start"),)),
    Key("search.rates", Either(Many(Number(above=0)), Named(lambda: stems(PUBLISHED, ".json"))),
        "further rates to run, or the published figure whose points are wanted", "requests per second", null=True),
    Key("search.keep_tables", Switch(), "keep the tables of every probe"),
    Key("calibrate.concurrency", SIZES, "requests in flight, one closed loop after the other", "requests"),
    Key("calibrate.passes", Whole(1, 1000), "through all loops"),
    Key("calibrate.requests", COUNT, "of each loop, at least", "requests"),
    Key("calibrate.rounds", COUNT, "requests of each loop per request in flight, at least"),
    Key("beside.rates", Many(Number(above=0), some=True), "rates at which the server is measured",
        "requests per second"),
    Key("beside.fit", Many(Number(above=0), some=True), "those of them that the step model is fitted to",
        "requests per second"),
    Key("beside.rounds", COUNT, "through all rates"),
    Key("beside.log", Text("the path of a file"), "what the engine wrote when it started: its limits", null=True),
    Key("beside.steps", Text("the path of a file"), "steps that the engine wrote down, JSON lines; null = those that "
        "the client sees", null=True),
    Key("beside.async_scheduling", Switch(), "whether the engine schedules a step ahead"),
    Key("overhead.batches", SIZES, "sequences of a step", "sequences"),
    Key("overhead.contexts", SIZES, "context of each sequence", "tokens"),
    Key("overhead.block_size", Whole(1, 256), "slots in a block", "slots"),
    Key("overhead.heads", COUNT, "query heads"),
    Key("overhead.kv_heads", COUNT, "KV heads"),
    Key("overhead.head_dim", COUNT, "width of a head"),
    Key("overhead.repeats", COUNT, "how often each is timed"),
    Key("validate.measured", Text("the path of a file"), "requests of the measured run, JSON lines", null=True),
    Key("validate.profile", Text("the path of a folder"), "kernel tables of the same GPU and model", null=True),
    Key("validate.meta", Text("the path of a file"), "the run's settings; null = beside the run", null=True),
    Key("validate.prompts", Text("auto, none or the path of a file"), "what the prompts have in common", null=True),
    Key("validate.layers", COUNT, "decoder layers of the model; null = as recorded", null=True),
    Key("validate.skew", Switch(), "correct attention for unequal contexts; null = as the tables say", null=True),
    Key("validate.vllm_version", Text("a version such as 0.19.0"), "decides the rules; null = as recorded", null=True),
    *(Key(f"validate.{name}", kind, f"{about}; null = as recorded", unit, null=True) for name, kind, about, unit in (
        ("max_num_seqs", COUNT, "most sequences in a batch", "sequences"),
        ("max_num_batched_tokens", COUNT, "most tokens computed in a step", "tokens"),
        ("max_model_len", Whole(2, 2**31 - 1), "longest sequence", "tokens"),
        ("block_size", Whole(1, 256), "slots in a block", "slots"),
        ("num_gpu_blocks", Whole(2, 2**31 - 1), "blocks of the pool, the null block included", "blocks"),
        ("enable_prefix_caching", Switch(), "the engine's prefix cache", ""),
        ("async_scheduling", Switch(), "the next step is scheduled while one runs", ""),
        ("chunked_prefill", Switch(), "prompts may be computed in pieces", ""),
        ("long_prefill_token_threshold", Whole(0, 2**31 - 1), "most tokens of one sequence in a step", "tokens"),
        ("reserve_full_isl", Switch(), "all tokens must fit before a piece is admitted", ""),
        ("watermark", Number(least=0, below=1), "share of the pool left free", ""),
        ("policy", Text(), "who is admitted first", ""),
        ("tensor_parallel", COUNT, "devices that share every matrix", ""),
        ("data_parallel", COUNT, "engines side by side", ""),
        ("pipeline_parallel", COUNT, "pipeline stages", ""))),
    Key("measured.rows", Text("the path of a file"), "a table of measured serving runs, CSV, plain or gzip", null=True),
    Key("measured.models", Text("the path of a folder"), "config.json files by hub name, beside those shipped",
        null=True),
    Key("measured.version", Text("a version such as 0.24.0"), "of the engines' tables; null = the newest", null=True),
    Key("measured.without", Many(Choice(*RULES)), "rules to do without: what a table lacks then costs nothing"),
    Key("measured.first", Whole(0), "the first row that is predicted", "rows"),
    Key("measured.every", COUNT, "predict every so many rows", "rows"),
    Key("part", Text("the name of a run in `parts`"), "which run of `experiment=claims` a job makes"),
    Key("parts", Table(Many(Text())), "its runs, each a list of overrides"),
    Key("case", Text("the name of a case in `cases`"), "which case of `experiment=fragmentation` a job is"),
    Key("cases", Table(Table(COUNT)), "its cases"),
    Key("swap_tokens", COUNT, "of the sequence whose moves are timed", "tokens"),
    Key("cap", COUNT, "longest answer of `experiment=output_variance`", "tokens"),
    Key("lanes", COUNT, "lanes of a batch, for `system=static_lanes` and `continuous_lanes`", "lanes"),
    Key("lanes_of", Table(COUNT), "lanes by `cap`", "lanes"),
    Key("length_of", Table(COUNT), "longest sequence by `cap`", "tokens"),
    Key("lengths", Text("the name of a pair in `lengths_of`"), "which sentences are translated"),
    Key("lengths_of", Table(Many(Number(above=0))), "mean lengths before and after", "tokens"),
    Key("rate_of", Table(Number(above=0)), "rate by workload", "requests per second"),
    Key("requests_of", Table(Whole(1, 100_000_000)), "requests by workload", "requests"),
]  # fmt: skip
