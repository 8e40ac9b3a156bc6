"""Paths as people have them on the command line: they work, or the answer gives the quoting that does."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from harness.console.arguments import keys_of, quoted, with_quotes
from harness.errors import HarnessError

NAMES = ["trace, final=2 (1).csv", "é à ü.csv", "it's.csv", 'say "so".csv', "a[1]{b}.csv", "a=b.csv", "a#b;c&d!.csv",
         "123", "true", "x(1).csv", "50%.csv", "a,b.csv", " lead.csv", "back\\slash.csv", "$HOME ${x}.csv", "~home.csv",
         "[a, b].csv", "{a: 1}.csv", "choice(a,b)", "'quoted'.csv", "plain.csv"]  # fmt: skip


def values(word: str) -> list[object]:
    override = OverridesParser.create().parse_override(word)
    return list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my runs").mkdir()
    for name in NAMES:
        (tmp_path / "my runs" / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["workload.path", "model.path", "+model.config"])
def test_a_path_that_exists_is_meant_as_it_stands(here: Path, name: str, key: str) -> None:
    for path in (f"my runs/{name}", str(here / "my runs" / name)):
        [word] = quoted([f"{key}={path}"])
        assert values(word) == [path.replace("${", "\\${")]  # OmegaConf's own escape
    assert quoted([f"label={name}"]) == [f"label={name}"]


def test_a_sweep_over_paths_stays_one(here: Path) -> None:
    words = quoted(["-m", "workload.path=my runs/trace, final=2 (1).csv,my runs/a,b.csv,my runs/plain.csv"])
    assert words[0] == "-m"
    assert [getattr(item, "text", item) for item in values(words[1])] == [
        "my runs/trace, final=2 (1).csv", "my runs/a,b.csv", "my runs/plain.csv"]  # fmt: skip


def test_what_is_no_file_is_left_to_hydra_where_hydra_understands_it(here: Path) -> None:
    for word in ("workload.path=null", "workload.path=", "workload.path=nowhere.csv", "workload.path=a.csv,b.csv",
                 "model.config={a: 1}", "workload.path='my runs/plain.csv'", "model.path=facebook/opt-125m",
                 "workload.path=${oc.env:HOME}/x", "hydra.run.dir=results/x",
                 "hydra.run.dir=a/${now:%H-%M}"):  # fmt: skip
        assert quoted([word]) == [word]
    assert values(quoted(["workload.path=nowhere (1).csv"])[0]) == ["nowhere (1).csv"]


def test_home_and_folders_of_results(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    assert values(quoted(["workload.path=~/my runs/plain.csv"])[0]) == [f"{here}/my runs/plain.csv"]
    assert values(quoted(["workload.path=~/nowhere.csv"])[0]) == [f"{here}/nowhere.csv"]
    assert values(quoted(["hydra.run.dir=~/out, (2)"])[0]) == [f"{here}/out, (2)"]
    assert values(quoted(["hydra.sweep.dir=é/2024"])[0]) == ["é/2024"]
    assert values(quoted(["hydra.run.dir=2024"])[0]) == ["2024"]
    assert values(quoted(["hydra.run.dir='my out'"])[0]) == ["my out"]


def test_a_path_that_the_shell_has_split_is_answered_with_its_quotes(here: Path) -> None:
    with pytest.raises(HarnessError) as caught:
        quoted(["workload.path=my", "runs/trace,", "final=2", "(1).csv", "seed=1"])
    assert str(caught.value).endswith('quote it: "workload.path=my runs/trace, final=2 (1).csv"')
    with pytest.raises(HarnessError, match=r"quote it: 'workload\.path=my runs/say \"so\"\.csv'"):
        quoted(["workload.path=my", "runs/say", '"so".csv'])


def test_other_values_that_hydra_cannot_read_are_answered_with_their_quotes() -> None:
    assert with_quotes("label=a (b), c") == "\"label='a (b), c'\""
    assert values(with_quotes("label=a (b), c")[1:-1]) == ["a (b), c"]
    assert with_quotes("nonsense") == ""
    assert with_quotes("a b=c") == ""


def test_keys_for_inspect() -> None:
    words = ["workload.time_unit=ms", "workload.columns={arrival_s: sent}", "workload.skip_s=2.5"]
    assert keys_of(words, "workload") == {"time_unit": "ms", "columns": {"arrival_s": "sent"}, "skip_s": 2.5}
    assert keys_of(["workload.columns.arrival_s=sent"], "workload") == {"columns": {"arrival_s": "sent"}}
    for word, said in (("seed=1", "only workload.KEY=VALUE"), ("trace.csv", "is not workload.KEY=VALUE"),
                       ("workload.sample=1,2", "only workload"),
                       ("workload.columns={a b: (}", "quote its value")):  # fmt: skip
        with pytest.raises(HarnessError, match=said):
            keys_of([word], "workload")
