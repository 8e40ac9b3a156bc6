"""The keys of every run: what is measured, how large the pool is, and on what it runs."""

from __future__ import annotations

from pathlib import Path

from harness import devices
from harness.schema.engine_log import FromLog
from harness.schema.key import Key, When, at, where, without
from harness.schema.kinds import Choice, Either, Many, Named, Number, Switch, Table, Text, Whole

EXPORTS = {"trace": "trace.json", "benchmark": "benchmark.json"}  # a module of harness.exports → what it writes
TABLES = ("csv", "parquet")  # the first is what reports read
SEED = Whole(0, 2**64 - 1)
MOST_SLOTS = 2**31 - 1  # a slot's number is one of 32 bits in every table
RUNNER = Path(__file__).parents[2] / "runner"
FIGURES = Path(__file__).parents[2] / "report" / "figures"
PUBLISHED = Path(__file__).parents[2] / "published"

MAPPING = Table(what="a mapping")
SIMULATED = where("device.kind", *devices.SIMULATED)
REAL = When("on a real device", lambda values: at(values, "device.kind") in devices.HERE)
OPERATORS = where("device.latency", "operators")
RULES = ("smooth", "history", "static_scales", "padded_graphs", "power_cap", "eager_prompts", "host", "pointwise",
         "borrowed_kernels", "dynamic_scales", "fused_norms", "normed_heads", "overlapped_host", "small_kernels",
         "drafts", "launches", "tokenized")  # fmt: skip
ON_CPU = When("on a CPU", lambda values: at(values, "device.kind") in ("cpu", "auto"))
ON_GPU = When("on a GPU", lambda values: at(values, "device.kind") in ("cuda", "auto"))
SERVING = ("harness.job.serve", "harness.tasks.capacity.find_capacity")
SERVES = When("where requests are served", lambda values: at(values, "task") in SERVING)


def stems(folder: Path, ending: str) -> list[str]:
    """Names of the files of a folder, without their ending."""
    return sorted(path.stem for path in folder.glob(f"[a-z]*{ending}"))


def hardware() -> list[str]:
    """The machines that are known."""
    return stems(RUNNER / "latency" / "hardware", ".yaml")


def latencies() -> list[str]:
    """The latency models that have a name."""
    return ["roofline", "operators", *stems(RUNNER / "latency" / "presets", ".yaml")]


def figures() -> list[str]:
    """The figures that belong to an experiment."""
    return stems(FIGURES, ".py")


RUN = [
    Key("task", Text("the dotted name of a function"), "what a job does: serve a workload, or what an experiment names",
        needed=True),
    Key("seed", SEED, "of every random stream: weights, tokens, lengths, arrivals", needed=True),
    Key("repeat", Whole(0), "which repetition of the same measurement this is", needed=True),
    Key("repeats", Whole(1, 1000), "how often each job of a sweep is run: in turn, with seeds `seed`, `seed` + 1, …",
        needed=True),
    Key("max_model_len", Whole(2, 2**31 - 1), "longest sequence, prompt and output", "tokens", needed=True),
    Key("kv_slots", Either(Whole(1, None, "a whole number from 1 to 2**31 - 1"), FromLog()),
        "size of the KV pool: a slot is room for a token's K and V in every layer", "slots",
        null=True, needed=True, when=(without("kv_bytes"), without("gpu_memory_utilization"))),
    Key("kv_bytes", Whole(1, 2**63 - 1), "size of the KV pool in bytes; wins over `kv_slots`", "bytes", null=True,
        needed=True, when=(without("gpu_memory_utilization"),)),
    Key("gpu_memory_utilization", Number(above=0, most=1),
        "share of the GPU's memory for weights, activations and pool; wins over both", null=True, needed=True),
    Key("clock", Choice("auto", "measured", "virtual", "wall"),
        "`measured` (real devices), `virtual` (simulated) or `wall` (sleeps until arrivals)", needed=True),
    *(Key(f"slo_ms.{name}", Number(above=0), f"limit on {what}; any that is set adds goodput", "ms", null=True,
          needed=True, when=(SERVES,))
      for name, what in (("ttft", "the time to the first token"), ("tpot", "the time per output token"),
                         ("e2e", "the time from arrival to end"))),
    Key("price_per_hour", Number(least=0), "adds the cost per million output tokens", "dollars per hour", null=True,
        needed=True, when=(SERVES,)),
    Key("simulation.exact_steps", Switch(), "take every step by itself: the same results, slower", needed=True,
        when=(SIMULATED,)),
    Key("simulation.async_scheduling", Switch(), "schedule one step ahead (`scheduler=vllm_v1`)", needed=True),
    Key("simulation.compiled", Switch(), "run what `python -m harness compile` has built: the same results, sooner",
        needed=True),
    Key("memory_map", Either(Choice("auto"), Switch()), "note where every request lies in the pool: at every step, or "
        "(`auto`) at 150 to 300 moments, of the first 24 jobs of a sweep", needed=True),
    Key("debug", Switch(), "check every call of the allocator", needed=True),
    Key("patience_s", Number(above=0), "how long one call of an allocator, a scheduler, an order, a router or a "
        "latency model may take before its job fails, as one that loops; null = for ever", "s", null=True),
    Key("baseline", Text(), "the system that ratios are against; null = the first one", null=True),
    Key("label", Text(), "a name for the row; null = from the configuration", null=True, needed=True),
    Key("figure", Named(figures), "what the report of a sweep draws; null = what fits any sweep", null=True),
    Key("figures", Choice("screen", "paper"), "how figures are drawn: `screen` (PNG and SVG), or `paper`: besides, "
        "PDFs one column of a two-column paper wide, each with a LaTeX float", needed=True),
    Key("exports", Many(Choice(*EXPORTS)), "files for other tools besides: `trace` is trace.json for Perfetto, "
        "`benchmark` benchmark.json as `vllm bench serve --save-detailed` writes it", needed=True,
        when=(where("task", "harness.job.serve"),)),
    Key("tables", Many(Choice(*TABLES), some=True), "how the tables of requests and steps are written: `csv`, which "
        "reports read, and besides `parquet`", needed=True, when=(where("task", "harness.job.serve"),)),
    Key("trace_s", Number(above=0), "length of a server's traces, where an experiment asks for one", "s"),
    Key("faster_transformer", Table(what="a latency model: `_target_` and its arguments"),
        "how long FasterTransformer's steps take on a server"),
]  # fmt: skip

DEVICE = [
    Key("device.kind", Choice(*devices.KINDS),
        "where the model runs; `auto`: on a GPU if there is one; `server`: at `server.url`", needed=True),
    Key("device.dtype", Choice("auto", "float32", "bfloat16", "float16"),
        "of weights and KV cache; `auto`: float32 on a CPU, bfloat16 on a GPU, simulated what `device.hardware` says"),
    Key("device.kv_dtype", Choice("auto", "fp8", "int8"), "of K and V, where it is another than of weights; it tells "
        "bytes and slots, not what becomes of the answers", when=(SIMULATED,)),
    Key("device.threads", Either(Choice("auto"), Whole(1, 4096)), "CPU threads; `auto`: 1 or all, whichever is faster",
        when=(ON_CPU,)),
    Key("device.kernels", Choice("auto", "torch", "numba", "triton"), "the attention kernels", when=(REAL,)),
    Key("device.check", Either(Choice("auto"), Switch()), "compare a model with itself unpatched before its first run: "
        "`auto`: one whose architecture is not among those tested; true: any; false: none", when=(REAL,)),
    Key("device.flatten", Either(Choice("auto"), Switch()),
        "whether the model is traced into a list of operations, where that works", when=(ON_CPU,)),
    Key("device.cuda_graphs", Switch(), "capture decode steps once and replay them", when=(ON_GPU,)),
    Key("device.latency", Either(Named(
        latencies, "a YAML file, the steps.csv of a run or a folder of kernel tables"), MAPPING),
        "how long steps take", null=True, when=(SIMULATED,)),
    Key("device.hardware", Either(Named(hardware, "a YAML file"), MAPPING),
        "the machine: its peaks and its memory", null=True, when=(SIMULATED,)),
    Key("device.tables", Text("the path of a folder"), "operator tables, as the package aiconfigurator-core has them",
        null=True, when=(SIMULATED,)),
    Key("device.engine", Text("an engine and a version, such as vllm-0.24.0"),
        "whose operators they are; without a version the newest", null=True, when=(OPERATORS,)),
    Key("device.quantization", Choice("none", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4_wo"),
        "element type of the weights (`mxfp4`, `int4_wo`: of experts only)", null=True, when=(OPERATORS,)),
    Key("device.without", Many(Choice(*RULES)), "rules of operator tables to do without", null=True,
        when=(OPERATORS,)),
    Key("device.tensor_parallel", Whole(1, 4096), "devices that share every matrix and every head", when=(SIMULATED,)),
]  # fmt: skip

SERVER = [
    Key("server.url", Text("an address such as http://localhost:8000"), "where the server listens", null=True),
    Key("server.model", Text("a model's name"), "as the server calls it; null = the only one it has", null=True),
    Key("server.api", Choice("completions", "chat"), "the endpoint that requests go to"),
    Key("server.tokenizer", Text("a folder or a hub name"), "of the model: prompts become text of exactly as many "
        "tokens; null = token ids", null=True),
    Key("server.vocab_size", Whole(2, 2**31 - 1), "prompts without a tokenizer are made of token ids below this",
        "tokens", when=(without("server.tokenizer"),)),
    Key("server.ignore_eos", Switch(), "answers are as long as the workload says"),
    Key("server.warmup", Whole(0, 1000), "requests before the clock starts, in no table", "requests"),
    Key("server.timeout_s", Number(above=0), "longest silence of a stream before its request has failed", "s"),
    Key("server.gone_s", Number(above=0), "so long without any connection, and the run stops", "s"),
    Key("server.max_connections", Whole(1, 1_000_000), "requests in flight at most; null = no bound", "requests",
        null=True),
    Key("server.api_key_env", Text("the name of an environment variable"), "which holds the API key"),
    Key("server.metrics", Text("auto or an address"), "where the engine's Prometheus metrics are; auto = `/metrics`, "
        "null = none are read", null=True),
    Key("server.metrics_s", Number(least=0.1), "time between two readings of them", "s"),
    Key("server.extra_body", MAPPING, "further fields of every request", null=True),
]  # fmt: skip

_COUNT = Whole(1, 2**31 - 1)
MODEL = [
    Key("model.name", Text(), "how the model is called in tables", needed=True),
    Key("model.path", Text("a folder or a hub name"), "real weights; wins over `model.config`", null=True),
    Key("model.config", Either(Table(what="a transformers config"), Text("the path of its JSON file")),
        "the model's shape, with random weights; its own keys are those of `transformers`", null=True,
        when=(without("model.path"),)),
    Key("model.init_std", Number(above=0), "standard deviation of random weights", when=(without("model.path"), REAL)),
    *(Key(f"model.config.{name}", _COUNT, about, null=null) for name, about, null in (
        ("hidden_size", "width of the model", False), ("num_hidden_layers", "layers", False),
        ("num_attention_heads", "query heads", False), ("num_key_value_heads", "KV heads", True),
        ("head_dim", "width of a head", True), ("vocab_size", "tokens of the vocabulary", False),
        ("max_position_embeddings", "longest sequence the model knows", False),
        ("intermediate_size", "width of an MLP", False), ("ffn_dim", "width of an MLP (OPT)", False),
        ("word_embed_proj_dim", "width of the embeddings (OPT)", False), ("num_experts", "experts of a layer", True),
        ("num_experts_per_tok", "experts that a token uses", True),
        ("moe_intermediate_size", "width of an expert", True), ("sliding_window", "tokens a layer looks back", True))),
    Key("model.config.rope_theta", Number(above=0), "base of the rotary embedding", null=True),
]  # fmt: skip
