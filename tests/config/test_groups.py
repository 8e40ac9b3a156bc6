"""Groups of the configuration: what options are built on, and systems that are named by their parts."""

from __future__ import annotations

import pytest

from harness.config import settle
from harness.groups import options
from harness.groups.pairs import MOVED
from harness.installation import EXPERIMENTS
from harness.naming.labels import label
from harness.tasks.claims import composed


@pytest.mark.parametrize(("group", "key"), [("workload", "name"), ("scheduler", "_target_"), ("device", "kind")])
def test_what_options_are_built_on_is_no_option(group: str, key: str) -> None:
    assert (EXPERIMENTS / group / "_base.yaml").is_file()
    assert "_base" not in options(EXPERIMENTS / group)
    assert any(said.startswith(f"{group}.{key}=???") for said in settle(composed([f"{group}=_base"]))[1])


@pytest.mark.parametrize("system", MOVED.values())
def test_a_system_of_version_0_1_is_its_parts(system: str) -> None:
    cfg, mistakes = settle(composed([f"system={system}"]))
    assert mistakes == []
    assert cfg == settle(composed([f"system={'+'.join(reversed(system.split('+')))}"]))[0]


def test_what_a_system_does_not_name_stays() -> None:
    assert label(composed(["system=static+paged"])) == "static + paged(on_demand)"
    assert label(composed(["system=buddy+exact", "scheduler=static"])) == "static + buddy(exact)"
    assert label(composed(["system=buddy+exact", "reservation=pow2"])) == "Orca (Pow2)"  # the command line wins
    assert label(composed(["experiment=block_size", "system=buddy+exact+continuous"])) == "Orca (Oracle)"
