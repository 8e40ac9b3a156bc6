"""The command line of the fuzz; what it is for stands in the package."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from . import __doc__ as about


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    kinds = parser.add_subparsers(dest="kind", required=True)
    for name in ("simulations", "digests", "compiled"):
        kind = kinds.add_parser(name)
        kind.add_argument("--cases", type=int, default=1000)
        kind.add_argument("--seed", type=int, default=0)
        kind.add_argument("--start", type=int, default=0, help="number of the first case, to go on in pieces")
        kind.add_argument("--out", type=Path, help="a CSV file of counts, to which those of earlier pieces are added")
        kind.add_argument("--compiled", action="store_true")
    kinds.add_parser("case").add_argument("line")
    kind = kinds.add_parser("readers")
    kind.add_argument("--seconds", type=float, default=60)
    kind.add_argument("--seed", type=int, default=0)
    kind.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    return RUN[arguments.kind](arguments)


def simulations(arguments: argparse.Namespace) -> int:
    from .draw import draw
    from .play import examine
    from .shrink import shrink

    counts, refusals, found, begun = Counter[tuple[str, str, str]](), Counter[str](), dict[str, str](), time.monotonic()
    for number in range(arguments.start, arguments.start + arguments.cases):
        case = draw(arguments.seed, number)
        outcome = examine(case)
        for key in ("allocator", "scheduler", "reservation", "layout", "scheduler.policy", "latency"):
            counts[key, case.get(key, "-"), outcome.kind] += 1
        counts["all", "cases", outcome.kind] += 1
        for event, times in outcome.events.items():
            counts["events", event, "served"] += times
        if outcome.kind == "refused":
            refusals[outcome.like[:110]] += 1
        if outcome.kind == "failed" and outcome.like not in found:
            found[outcome.like] = str(shrink(case, outcome))
            print(f"case {number}: {outcome.said}\n{outcome.trace}")
            print(f"  python -m tests.fuzz case '{found[outcome.like]}'\n", flush=True)
    total = ", ".join(f"{counts['all', 'cases', kind]} {kind}" for kind in ("served", "refused", "failed"))
    took = f"in {time.monotonic() - begun:.0f} s"
    print(f"{arguments.cases} cases from {arguments.start} of seed {arguments.seed} {took}: {total}")
    for said, times in refusals.most_common(12):
        print(f"  {times:5} refused: {said}")
    if arguments.out:
        add(arguments.out, counts)
    return 1 if found else 0


def add(path: Path, counts: Counter[tuple[str, str, str]]) -> None:
    """Add counts to those in a CSV file."""
    if path.exists():
        with open(path, encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                counts[row["what"], row["value"], row["outcome"]] += int(row["count"])
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["what", "value", "outcome", "count"])
        writer.writerows([*key, count] for key, count in sorted(counts.items()))


def case(arguments: argparse.Namespace) -> int:
    from .cases import Case
    from .play import examine

    outcome = examine(Case.read(arguments.line))
    print(outcome.trace or outcome.said or f"{outcome.kind}: {dict(outcome.events)}")
    return int(outcome.kind == "failed")


def digests(arguments: argparse.Namespace) -> int:
    if arguments.compiled:
        from harness import compiled

        compiled.use()
        if not compiled.in_use():
            sys.exit("nothing is built from the sources as they are: python -m harness compile")
    from .draw import draw
    from .play import digest

    for number in range(arguments.start, arguments.start + arguments.cases):
        case = draw(arguments.seed, number)
        print(number, digest(case.with_key("simulation.compiled", "true") if arguments.compiled else case))
    return 0


def compiled(arguments: argparse.Namespace) -> int:
    from .draw import draw

    words = [f"--{name}={getattr(arguments, name)}" for name in ("cases", "seed", "start")]
    told = []
    for more in ([], ["--compiled"]):
        done = subprocess.run([sys.executable, "-m", "tests.fuzz", "digests", *words, *more], stdout=subprocess.PIPE,
                              text=True, check=True)  # fmt: skip
        told.append(done.stdout.splitlines())
    wrong = [one.split()[0] for one, other in zip(*told, strict=True) if one != other]
    print(f"{arguments.cases} cases from {arguments.start} of seed {arguments.seed}: {len(wrong)} differ compiled")
    for number in wrong[:10]:
        print(f"  python -m tests.fuzz case '{draw(arguments.seed, int(number))}'")
    return 1 if wrong else 0


def readers(arguments: argparse.Namespace) -> int:
    from .readers import run

    return run(arguments.seconds, arguments.seed, arguments.out)


RUN = {"simulations": simulations, "digests": digests, "compiled": compiled, "case": case,
       "readers": readers}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
