"""Plug-ins that raise, leak, free twice, lie, loop, leave or are killed: named, and the other jobs are as ever."""

from __future__ import annotations

import json
from collections.abc import Iterator

from .kills import JOBLIB
from .place import FAST, HERE, Place

GOOD, BAD = "allocators.paged.Paged", "tests.deadly."
NAMED = {  # what the table says of each
    "Raises": "KeyError: 'no such drawer'", "Exits": "SystemExit: enough", "Leaks": "ContractError",
    "FreesTwice": "Error", "Lies": "ContractError", "Overlaps": "ContractError", "Hangs": "Hangs.place",
}  # fmt: skip
EQUAL = {"0": "0", "3": "1"}  # jobs of [good, bad, good] × seeds that nothing is wrong with, and their equals


def sweep(name: str, *more: str) -> tuple[str, ...]:
    return (*FAST, "system=vllm", f"allocator._target_={GOOD},{BAD}{name}", "seed=0,1", *more, HERE)


def named(place: Place, name: str) -> None:
    place.run(*sweep(name, "debug=true", "patience_s=1"), code=1)
    _others(place, name, NAMED[name])


def killed(place: Place, *launcher: str) -> None:
    """It takes its process with it each time."""
    if launcher:
        place.run(*sweep("Dies", *launcher), code=1)
        _others(place, "Dies", "its process died 2 times")
        return
    place.run(*sweep("Dies"), code=-9)
    place.run("resume", "sweep", code=-9)  # what died comes last
    place.run("report", "sweep", code=1)
    _others(place, "Dies", "")


def killed_once(place: Place) -> None:
    place.run(*sweep("DiesOnce", *JOBLIB), code=0)
    place.must((place.folder / "mark").exists(), "nothing died")
    _others(place, "DiesOnce", "")


def _others(place: Place, name: str, said: str) -> None:
    """Jobs 0 and 1 are good (seeds 0 and 1), 2 and 3 bad."""
    place.compare({"0": "0", "1": "1"}, table=False)
    errors = []
    for job in "23":
        path = place.folder / "sweep" / job / "summary.json"
        errors.append(str(json.loads(path.read_text()).get("error")) if path.exists() else "")
    place.must(all(said in error for error in errors), f"{name} is not named: {errors}")
    place.note = errors[0].splitlines()[0][:160] if errors[0] not in ("", "None") else ""


def plug_ins() -> Iterator[tuple[str, object]]:
    for name in NAMED:
        yield f"plug-in {name}", lambda place, one=name: named(place, one)
    yield "plug-in kills its process, one process", killed
    yield "plug-in kills its process, joblib", lambda place: killed(place, *JOBLIB)
    yield "plug-in kills its process once, joblib", killed_once
