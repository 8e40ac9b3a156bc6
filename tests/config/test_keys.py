"""The schema walked key by key: wrong values of every kind are refused with the key's name, in-process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

import harness.__main__  # noqa: F401  (its resolvers)
from harness.config import settle
from harness.groups import files, options, written
from harness.installation import EXPERIMENTS
from harness.lookup import locate
from harness.schema import plugins
from harness.schema.keys import KEYS, SECTIONS
from harness.schema.keys.plugins import HOME
from harness.schema.kinds import Choice, Either, Many, Number, Spec, Switch, Table, Text, Whole
from harness.tasks.claims import composed

WORDS = {True: ["true", "True", "TRUE", "on", "On", "ON", "yes", "Yes", "y", "Y", True],
         False: ["false", "False", "off", "Off", "OFF", "no", "No", "NO", "n", "N", False]}  # fmt: skip
NO_NUMBER = [True, False, "abc", "", "2s", "off", math.nan, math.inf, -math.inf, [1, 2], [], {"a": 1}]


def wrong(kind: Any) -> list[Any]:
    """Values that are none of a kind."""
    if isinstance(kind, Switch):
        return [0, 1, 2.5, "maybe", "", "tru", [True], {"on": True}, math.nan]
    if isinstance(kind, Whole):
        outside = [kind.least - 1] if kind.least is not None else []
        return [*NO_NUMBER, 2.5, 1e-3, *outside, *([kind.most + 1, 10**30] if kind.most is not None else [])]
    if isinstance(kind, Number):
        bounds = [(kind.least, -1), (kind.above, 0), (kind.most, 1), (kind.below, 0)]
        return [*NO_NUMBER, *(bound + step for bound, step in bounds if bound is not None)]
    if isinstance(kind, Choice):
        return [f"{kind.names[0]}x", "", 7.25, True, [kind.names[0]], {kind.names[0]: 1}]
    if isinstance(kind, Text):
        return ["", True, False, ["a"], {"a": 1}]
    if isinstance(kind, Spec):
        return ["", "no_such", ":", f"{kind.words[0]}:3", *kind.numbers, 7, [1], {}, False,
                *(f"{word}:{bad}" for word in kind.numbers for bad in ("", "x", "-1", "nan", "inf"))]  # fmt: skip
    if isinstance(kind, Many):
        return [3, "a", {"a": 1}, *([item] for item in wrong(kind.of)), *([[]] if kind.some else [])]
    if isinstance(kind, Table):
        return [3, "a", [1], True, *({"a": item} for item in (wrong(kind.of) if kind.of else ()))]
    if isinstance(kind, Either):
        each = [wrong(one) for one in kind.kinds]
        return [value for value in each[0] if all(_among(value, others) for others in each[1:])]
    return [3.5, True, "/no/such/file", "", [1]]  # a name or a path that is there


def _among(value: Any, values: list[Any]) -> bool:
    return any(type(one) is type(value) and (one == value or one != one) for one in values)


@pytest.mark.parametrize("name", KEYS)
def test_wrong_values_of_every_key_are_refused_with_its_name(name: str) -> None:
    key = KEYS[name]
    values = wrong(key.kind) + ([] if key.null else [None])
    assert values
    for value in values:
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            key.read(value)
        assert str(caught.value).startswith(f"{name}={value}: {name} must be "), value
    if key.null:
        assert key.read(None) is None


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if isinstance(key.kind, Switch)])
def test_words_for_yes_and_no_are_booleans_at_every_switch(name: str) -> None:
    for meant, words in WORDS.items():
        assert [KEYS[name].read(word) for word in words] == [meant] * len(words)


@pytest.mark.parametrize("name", [name for name, key in KEYS.items() if isinstance(key.kind, Whole)])
def test_a_whole_number_may_be_written_as_a_float(name: str) -> None:
    read = KEYS[name].read(32.0)
    assert (type(read), read) == (int, 32)


@pytest.mark.parametrize(("name", "value", "read"), [
    ("seed", 2**64 - 1, 2**64 - 1), ("kv_bytes", 12e9, 12_000_000_000), ("gpu_memory_utilization", 1, 1),
    ("device.threads", "auto", "auto"), ("device.threads", 4.0, 4), ("device.flatten", "off", False),
    ("device.flatten", "auto", "auto"), ("scheduler.version", 0.33, "0.33"), ("workload.max_tokens", True, "true"),
    ("workload.max_tokens", "times:1.5", "times:1.5"), ("scheduler.length_predictor", "noisy:0.7", "noisy:0.7"),
    ("allocator.lane_slots", "longest", "longest"), ("allocator.lane_slots", 2e3, 2000), ("label", 3, "3"),
    ("search.rates", [1, 2.5], [1, 2.5]), ("search.rates", "fig12", "fig12"), ("device.hardware", {"a": 1}, {"a": 1}),
    ("device.latency", str(Path(__file__)), str(Path(__file__))), ("price_per_hour", 0, 0), ("cap", 32.0, 32),
])  # fmt: skip
def test_right_values_come_as_the_program_takes_them(name: str, value: Any, read: Any) -> None:
    got = KEYS[name].read(value)
    assert (type(got), got) == (type(read), read)


@pytest.mark.parametrize(("name", "value", "hint"), [
    ("clock", "measurd", "did you mean measured?"), ("device.latency", "rofline", "did you mean roofline?"),
    ("device.hardware", "a100_40g", "did you mean a100_40gb"), ("workload.arrival", "poison", "did you mean poisson?"),
    ("scheduler.length_predictor", "histry", "did you mean history?"), ("figure", "knob", "did you mean knobs?"),
    ("workload.rate", 0, "all at once is workload.arrival=burst"), ("device.dtype", "bfloat", "did you mean bfloat16"),
])  # fmt: skip
def test_a_misspelt_choice_is_answered_with_the_nearest(name: str, value: Any, hint: str) -> None:
    with pytest.raises(ValueError, match=f"{name}={value}: .*{hint.replace('?', '.')}"):
        KEYS[name].read(value)


# ---- the schema beside the configuration files and the classes ------------------------------------------------------


def dotted(config: Any, prefix: str = "") -> set[str]:
    """Every leaf, down to what is a leaf of the schema."""
    if not isinstance(config, DictConfig) or (prefix in KEYS and prefix not in SECTIONS):
        return {prefix}
    return {leaf for key in config for leaf in dotted(config._get_node(key), f"{prefix}.{key}".lstrip("."))}


@pytest.mark.parametrize(
    "path", sorted(EXPERIMENTS.rglob("*.yaml")), ids=lambda path: str(path.relative_to(EXPERIMENTS))
)
def test_every_key_of_every_file_is_in_the_schema(path: Path) -> None:
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    for key in ("defaults", "hydra"):
        config.pop(key, None)
    group = path.parent.relative_to(EXPERIMENTS).as_posix()
    whole = group in (".", "experiment", "server", "system") or "@package _global_" in path.read_text()
    if group.startswith("hydra"):
        return
    unknown = {name for name in dotted(config, "" if whole else group) - KEYS.keys() if name}
    assert {name for name in unknown if not name.startswith("model.config.")} == set()


@pytest.mark.parametrize("group", HOME)
def test_every_argument_of_our_classes_is_in_the_schema_and_fits_its_default(group: str) -> None:
    targets = {written(path)["_target_"] for path in files(EXPERIMENTS / group)}
    assert targets
    from_model = ("token_bytes", "buffers", "layout", "geometry")
    for target in targets:
        cls = locate(str(target), group)
        for name in plugins.arguments(cls):
            if group != "reservation" and name not in from_model:
                assert f"{group}.{name}" in KEYS, target


@pytest.mark.parametrize("name", options(EXPERIMENTS / "experiment"))
def test_every_experiment_is_well(name: str) -> None:
    more = {"claims": ["part=full_vllm"], "beside": ["server.url=http://localhost"]}.get(name, [])
    cfg = composed([f"experiment={name}", *more])
    assert settle(cfg)[1] == []


@pytest.mark.parametrize(("group", "option"), [
    (group, option) for group in ("system", "allocator", "scheduler", "model", "device", "server", "workload")
    for option in options(EXPERIMENTS / group)])  # fmt: skip
def test_every_option_is_well(group: str, option: str) -> None:
    more = [f"workload.path={__file__}"] if option == "trace" else ["+lanes=4"] if option.endswith("_lanes") else []
    more += ["server.url=http://localhost"] if option == "server" else []
    cfg, mistakes = settle(composed([f"{group}={option}", *more]))
    assert mistakes == []
    plain = composed([f"{group}={option}", *more])
    assert cfg == plain  # settling changes nothing of what we ship
