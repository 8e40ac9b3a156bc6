"""Groups, blocks, padding and both log lines, byte for byte. Any folder: `pytest tests/geometry --geometry-dir DIR`.

Without it the files beside this one are compared, and those of `shared/geometry` beside the checkout where that exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allocators.layout import KVLayout, LayerGroup, State
from allocators.vllm_groups import Engine, Spec, form
from allocators.vllm_pool import Geometry
from tests.geometry.files import folder_files, model_geometry, our_case, our_figures, their_figures

HERE = Path(__file__).parent
BESIDE = HERE.parents[2] / "shared" / "geometry"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folders = metafunc.config.getoption("geometry_dir") or [HERE, *sorted(BESIDE.glob("*"))]
    found = [folder_files(folder) for folder in folders]
    models, lists = [file for some, _ in found for file in some], [file for _, some in found for file in some]
    if not models + lists:
        raise pytest.UsageError(f"no geometries (*.json, *.jsonl) in {', '.join(map(str, folders))}")
    if "model" in metafunc.fixturenames:
        metafunc.parametrize("model", models, ids=[f"{file.parent.name}-{file.stem}" for file in models])
    if "case" in metafunc.fixturenames:
        cases = {f"{file.parent.name}-{case['name']}": case for file in lists for case in map(json.loads, file.open())}
        metafunc.parametrize("case", list(cases.values()), ids=list(cases))


def test_a_models_groups_and_pools_are_the_engines(model: Path) -> None:
    told = json.loads(model.read_text())
    for name, variant in told["variants"].items():
        specs, pool = model_geometry(told["config"], variant, name)
        sizes = [int(size) for size in variant["pools"]]
        assert our_figures(specs, pool, sizes) == their_figures(variant), name


def test_what_the_engine_says_while_it_starts_is_ours(model: Path) -> None:
    """The raised block, how much larger states become by it, and the places that no layer takes."""
    told = json.loads(model.read_text())
    for name, variant in told["variants"].items():
        _, pool = model_geometry(told["config"], variant, name)
        reported = variant["reported_at_start"]
        raised = None if pool.smallest == variant["engine_args"].get("block_size", 16) else pool.smallest
        assert reported["attention_block_size_raised_to"] == raised
        padded = [100 * (g.spec.page - g.spec.real) / g.spec.real for g in pool.groups if g.spec.kind == "mamba"]
        share = round(padded[0], 2) if padded and padded[0] else None
        assert reported["mamba_page_padding_percent"] == share
        assert reported["padding_layers_and_percent"] == _empty_places(pool)


def _empty_places(pool: Geometry) -> list[list[float]]:
    """(places, percent of the layers) of each kind of layers that has some."""
    layers: dict[Spec, list[int]] = {}
    for group in pool.groups:
        layers.setdefault(group.spec, []).append(len(group.layers))
    empty = [(pool.places * len(counts) - sum(counts), sum(counts)) for counts in layers.values()]
    return [[places, round(100 * places / count, 2)] for places, count in empty if places]


def test_made_up_layers_are_grouped_as_the_engine_does(case: dict[str, Any]) -> None:
    figures = our_case(case)
    assert figures == {key: case[key] for key in figures if key in case}
    assert ("error" in figures) == ("error" in case)


def test_a_latent_beside_windows_that_it_does_not_divide_keeps_them_whole() -> None:
    """As the engine does: one group in which everything is kept."""
    latent, window = Spec("mla", 16, 1152), Spec("sliding", 16, 2560, reach=512)
    (group,) = form([latent, window, latent], Engine())
    assert group.layers == (0, 1, 2)
    assert group.taken == 16 * (1152 + 2560 + 1152)


def test_a_latent_beside_larger_states_that_it_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        form([Spec("mla", 16, 1152), Spec("mamba", 4096, state_bytes=100_000)], Engine())


def test_a_match_unit_must_divide_every_block() -> None:
    layout = KVLayout((LayerGroup("full", (0,), 1, 64, 64), LayerGroup("state", (1,), states=(State((64,), 2),))))
    assert Geometry.of(layout, Engine(match_unit=8)).hash_unit == 8
    assert Geometry.of(layout, Engine(match_unit=8)).fine
    with pytest.raises(ValueError, match="match_unit=5 must divide"):
        _ = Geometry.of(layout, Engine(match_unit=5)).hash_unit
