"""A naive engine with groups of layers, written from the rules of its behaviour alone: lists, and nothing fast.

It is no part of kvlab: `VllmHybrid` under `VllmV1` is compared with it, and it with the engine's own step traces. Block
0 is the null block. A key is (group, the tokens it covers).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, inf, lcm
from typing import Any


@dataclass
class Req:
    """A request and its tables, one for each group."""

    name: str
    prompt: list[int]
    output: int
    tokens: list[int]
    computed: int = 0
    junction: int = 0
    tables: list[list[int]] = field(default_factory=list)
    considered: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    retired: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)  # 0 none, 1 a hit inside a block, 2 a partial key mid-block
    checkpoint: tuple[int, int] | None = None  # tokens, column


class Model:
    """One scheduler with its pool; `config` is that of a golden file."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.c = config
        self.align = config.get("mamba_mode", "none") == "align"
        self.groups = config.get("groups") or [{"kind": "full"}]
        self.bs = [self._block_size(g) for g in self.groups]
        self.several = len(self.groups) > 1
        self.sb = lcm(*self.bs)
        none = not self.align and any(g["kind"] == "mamba" for g in self.groups)
        self.hb = config.get("match_unit") or (
            gcd(*self.bs) if config["apc"] and not none and self.several else self.sb
        )
        self.fine = (
            config["apc"] and self.several
            and any(self.state(g) and self.bs[g] > self.hb for g in range(len(self.groups)))
            and all(x["kind"] in ("full", "mla", "mamba") or size == self.hb
                    for x, size in zip(self.groups, self.bs, strict=True))
        )  # fmt: skip
        self.al = self.hb if self.fine else self.sb
        blocks = config["num_blocks"]
        self.free = list(range(1, blocks))
        self.refs = dict.fromkeys(range(blocks), 0)
        self.keys: dict[int, list[Any]] = {b: [] for b in range(blocks)}  # the first is the primary one
        self.found: dict[Any, list[int]] = {}
        self.fresh: set[int] = set()  # keyed in this step
        self.copied: list[list[tuple[int, int]]] = [[] for _ in self.groups]
        self.waiting: list[Req] = []
        self.running: list[Req] = []

    def _block_size(self, group: dict[str, Any]) -> int:
        if group["kind"] == "mamba" and not self.align:
            return self.c["max_len"]
        return group.get("block_size", self.c["block_size"])

    def kind(self, g: int) -> str:
        return {"mla": "full"}.get(self.groups[g]["kind"], self.groups[g]["kind"])

    def state(self, g: int) -> bool:
        return self.kind(g) == "mamba" and self.align

    # ---- the pool (rules 1-5, 23, 33) --------------------------------------------------------------------------------

    def pop(self) -> int:
        block = self.free.pop(0)
        self.strip(block)
        self.refs[block] = 1
        return block

    def strip(self, block: int) -> None:
        for key in self.keys[block]:
            self.found[key].remove(block)
        self.keys[block] = []

    def touch(self, block: int) -> None:
        if not self.refs[block]:
            self.free.remove(block)
        self.refs[block] += 1

    def release(self, blocks: list[int]) -> None:
        front, back = [], []
        for block in blocks:
            if block:
                self.refs[block] -= 1
                if not self.refs[block]:
                    (back if self.keys[block] else front).append(block)
        self.free = front + self.free + back

    def add_key(self, block: int, key: Any) -> None:
        self.keys[block].append(key)
        self.found.setdefault(key, []).append(block)
        self.fresh.add(block)

    def key(self, g: int, tokens: list[int], end: int) -> Any:
        return (g, tuple(tokens[:end]))

    def partial(self, block: int, key: Any) -> None:
        if key in self.keys[block]:
            return
        if self.keys[block] and len(self.keys[block][0][1]) < len(key[1]):
            self.strip(block)
        self.add_key(block, key)

    def lookup(self, g: int, tokens: list[int], end: int) -> int:
        blocks = self.found.get(self.key(g, tokens, end))
        return blocks[0] if blocks else 0

    # ---- a step of one request (rules 13-34) -------------------------------------------------------------------------

    def skip(self, g: int, n: int) -> int:
        x, kind = self.groups[g], self.kind(g)
        if kind == "sliding":
            return max(n - x["window"] + 1, 0)
        if kind == "chunked":
            return n // x["chunk"] * x["chunk"]
        return max(n - 1, 0) if kind == "mamba" else 0

    def trim(self, r: Req) -> None:
        n = r.computed
        for g, table in enumerate(r.tables):
            end = min(self.skip(g, n) // self.bs[g], len(table))
            gone = []
            for i in range(end - 1, (r.retired[g] if self.state(g) else 0) - 1, -1):
                if table[i]:
                    gone.append(table[i])
                    table[i] = 0
                elif not self.state(g):
                    break
            self.release(gone)
            if self.state(g):
                r.retired[g] = max(r.retired[g], end)
                at = r.previous[g]
                if 0 <= at < -(-n // self.bs[g]) - 1 and table[at]:
                    self.release([table[at]])
                    table[at] = 0

    def due(self, r: Req, start: int, end: int, tables: list[list[int]] | None) -> int:
        """Tokens of the state that is exported inside the chunk (rule 31), or 0; rule 30 does not look at tables."""
        mambas = [g for g in range(len(self.groups)) if self.kind(g) == "mamba"]
        if not self.align or not mambas or not all(self.groups[g].get("checkpoint_blocks") for g in mambas):
            return 0
        p = (end - 1) // self.al * self.al
        grid = lcm(*[self.groups[g].get("checkpoint_alignment") or 1 for g in mambas])
        if start % self.hb or start + self.hb > p or not start < p < end or (p - start) % grid:
            return 0
        if (tables is None or self.c["retention"] == 0) and end < max(len(r.prompt), len(r.tokens) - 1):
            return 0
        for g in mambas:
            column = -(-end // self.bs[g]) - 2
            if column < 0 or column <= (start - 1) // self.bs[g]:
                return 0
            if tables is not None and column < len(tables[g]) and tables[g][column]:
                return 0
        return p

    def need(self, r: Req, n: int, n0: int, hits: list[list[int]] | None, hit: int, gate: bool, due: int) -> float:
        total: float = 0
        cap = self.c["max_len"]
        for g, table in enumerate(r.tables):
            bs, found = self.bs[g], hits[g] if hits else []
            inside = bool(found) and hit % bs > 0
            want = -(-n // bs)
            low = self.skip(g, n0) // bs
            if self.state(g):
                if found and found[-1] and found[-1] in self.fresh:
                    return inf
                new = want - len(found) - len(table)
                extra = int(bool(r.pending[g]) or inside)
                new = max(new, 0) + extra
                if new > 0:
                    new = min(new, 1 + extra + (1 if due else 0))
                total += new + sum(b > 0 and not self.refs[b] for b in found)
                continue
            if gate and self.kind(g) == "sliding":
                want = min(want, -(-min(self.groups[g]["window"] - 1 + self.c["budget"], cap) // bs) + 1)
            if gate and self.kind(g) == "chunked":
                want = min(want, -(-min(self.groups[g]["chunk"] + self.c["budget"], cap) // bs))
            total += max(want - max(low, len(found) + len(table)), 0) + inside
            total += sum(b > 0 and not self.refs[b] for b in found[low:])
        return total

    def allocate(self, r: Req, count: int, hits: list[list[int]] | None, hit: int) -> bool:
        """Rule 15; the tables grow and keys are stored, or nothing but the trim happened."""
        admission = hits is not None
        n0, cap = r.computed + hit, self.c["max_len"]
        watermark = int(self.c["wm"] * self.c["num_blocks"]) if admission and self.running else 0
        if admission and self.c["reserve"]:
            n = min(len(r.tokens), cap)
            due = self.due(r, n0, n, hits)
            if self.need(r, n, n0, hits, hit, True, due) + watermark > len(self.free):
                return False
        if not admission:
            self.trim(r)
        n = min(n0 + count, cap)
        due = self.due(r, n0, n, hits if admission else r.tables)
        if self.need(r, n, n0, hits, hit, False, due) + watermark > len(self.free):
            return False
        if hits and any(hits):
            for g, found in enumerate(hits):
                self.adopt(r, g, found, hit)
        for g in range(len(self.groups)):
            self.grow(r, g, n, due)
        r.checkpoint = None
        if self.c["apc"]:
            self.store(r, min(n, len(r.tokens)), n0, due, n)
        return True

    def adopt(self, r: Req, g: int, found: list[int], hit: int) -> None:
        low = min(self.skip(g, hit) // self.bs[g], len(found))
        for block in found[low:]:
            if block:
                self.touch(block)
        r.tables[g] = [0] * low + found[low:]
        r.considered[g] = len(found)
        if found and hit % self.bs[g]:
            r.considered[g] = hit // self.bs[g]
            r.pending[g] = 1

    def grow(self, r: Req, g: int, n: int, due: int) -> None:
        table, want = r.tables[g], -(-n // self.bs[g])
        if self.state(g):
            if want <= len(table) and not r.pending[g] and not due:
                return
            self.copy(r, g)
            r.previous[g] = len(table) - 1
            while len(table) < want - 1 - bool(due):
                table.append(0)
        else:
            self.copy(r, g)
        while len(table) < want:
            table.append(self.pop())

    def copy(self, r: Req, g: int) -> None:
        """Rule 34."""
        if not r.pending[g]:
            return
        source, target = r.tables[g][-1], self.pop()
        if r.pending[g] == 1:
            r.tables[g][-1] = target
            self.refs[target] += 1
        else:
            self.refs[source] += 1
            moved = self.keys[source]
            self.keys[source], self.keys[target] = [], moved
            for key in moved:
                self.found[key] = [target if b == source else b for b in self.found[key]]
        self.copied[g].append((source, target))
        r.pending[g] = 0

    def kept(self, g: int, block: int, r: Req) -> bool:
        if self.kind(g) in ("full", "chunked"):
            return True
        bs = self.bs[g]
        w = -(-(self.groups[g]["window"] - 1) // bs) if self.kind(g) == "sliding" else 1
        retention = self.c["retention"]
        if not w:
            return False
        segment = self.al if retention is None else retention
        if retention is None and self.kind(g) == "mamba":
            return True
        if segment and segment <= w * bs:
            return True
        if self.kind(g) == "sliding" and self.al % bs:
            return True
        ends = [p // self.al * self.al for p in self.replays(r)]
        if segment:
            ends.append(-(-((block + 1) * bs) // segment) * segment)
        return any(p // bs - w <= block < p // bs for p in ends)

    def replays(self, r: Req) -> list[int]:
        return [len(r.prompt) - 1] + ([r.junction] if r.junction else [])

    def store(self, r: Req, known: int, start: int, due: int, end: int) -> None:
        n = known
        if self.several and not self.fine:
            n = n // self.sb * self.sb
        hashed = len(r.tokens) // self.hb * self.hb
        boundary = (len(r.prompt) - 1) // self.hb * self.hb
        for g, table in enumerate(r.tables):
            bs = self.bs[g]
            full = min(n, hashed) // bs
            for i in range(r.considered[g], full):
                if table[i] and self.kept(g, i, r):
                    self.strip(table[i])
                    self.add_key(table[i], self.key(g, r.tokens, (i + 1) * bs))
            r.considered[g] = max(r.considered[g], full)
            if self.kind(g) == "full" and bs != self.hb:
                e = min(boundary, hashed)
                if e <= n and e % bs and e:
                    self.partial(table[e // bs], self.key(g, r.tokens, e))
            if self.state(g) and self.fine and known == boundary and boundary:
                at = (known - 1) // bs
                self.partial(table[at], self.key(g, r.tokens, known))
                if known % bs:
                    r.considered[g] = min(r.considered[g], at)
                    r.pending[g] = 2
            if self.state(g) and due:
                self.store_checkpoint(r, g, due, end)

    def store_checkpoint(self, r: Req, g: int, p: int, end: int) -> None:
        """Rule 32."""
        block = r.tables[g][-(-end // self.bs[g]) - 2]
        ends = [q // self.al * self.al for q in self.replays(r)]
        retention = self.c["retention"]
        on = retention is None or (retention > 0 and p % retention == 0)
        if p in ends or on:
            if not self.keys[block] or len(self.keys[block][0][1]) != p:
                self.strip(block)
                self.add_key(block, self.key(g, r.tokens, p))
        else:
            self.strip(block)

    # ---- hits (rules 35-42) ------------------------------------------------------------------------------------------

    def hit(self, r: Req) -> tuple[int, list[list[int]]]:
        none: list[list[int]] = [[] for _ in self.groups]
        r.junction = 0
        if not self.c["apc"]:
            return 0, none
        kinds: dict[Any, list[int]] = {}
        for g, x in enumerate(self.groups):
            kinds.setdefault((x["kind"], x.get("window"), x.get("chunk"), self.bs[g]), []).append(g)
        order = sorted(kinds.values(), key=lambda gs: self.kind(gs[0]) != "full")
        length, longest = len(r.tokens) - 1, 0
        tables: dict[int, list[list[int]]] = {}
        while True:
            now = length
            for gs in order:
                if self.kind(gs[0]) == "full" and gs[0] in tables:
                    continue
                now, tables[gs[0]] = self.find(gs, r.tokens, now)
                longest = max(longest, now)
            shorter, length = now < length, now
            simple = len(order) == 2 and self.kind(order[0][0]) == "full"
            if not shorter or simple or len(order) == 1:
                break
        for gs in order:
            for g, table in zip(gs, tables[gs[0]], strict=True):
                none[g] = table[: -(-length // self.bs[g])] if self.kind(g) == "full" else table
        if self.several and longest > length:
            r.junction = longest
        return length, none

    def find(self, gs: list[int], tokens: list[int], limit: int) -> tuple[int, list[list[int]]]:
        bs, kind = self.bs[gs[0]], self.kind(gs[0])
        al = self.al if self.several else bs

        def there(end: int) -> list[int]:
            blocks = [self.lookup(g, tokens, end) for g in gs]
            return blocks if all(blocks) else []

        def table(columns: list[list[int]]) -> list[list[int]]:
            return [[column[i] if column else 0 for column in columns] for i in range(len(gs))]

        columns: list[list[int]] = []
        if kind == "full":
            while (len(columns) + 1) * bs <= limit and there((len(columns) + 1) * bs):
                columns.append(there((len(columns) + 1) * bs))
            if self.fine:
                low = len(columns) * bs
                for end in range(limit // al * al, low, -al):
                    if end < low + bs and there(end):
                        return end, table([*columns, there(end)])
            while len(columns) * bs % al:
                columns.pop()
            return len(columns) * bs, table(columns)
        if kind == "sliding":
            w, run = -(-(self.groups[gs[0]]["window"] - 1) // bs), 0
            columns = [[] for _ in range(limit // bs)]
            for i in range(limit // bs - 1, -1, -1):
                found = there((i + 1) * bs)
                if not found:
                    run = 0
                elif run or not (i + 1) * bs % al:
                    columns[i] = found
                    run += 1
                    if run >= w:
                        return (i + run) * bs, table([[]] * i + columns[i : i + run])
            while run * bs % al:
                run -= 1
            return run * bs, table(columns[:run])
        if kind == "chunked":
            chunk = self.groups[gs[0]]["chunk"]
            columns = [[] for _ in range(limit // chunk * chunk // bs)]
            while (len(columns) + 1) * bs <= limit and there((len(columns) + 1) * bs):
                columns.append(there((len(columns) + 1) * bs))
            return len(columns) * bs, table(columns)
        for end in range(limit // al * al, 0, -al):
            if there(end):
                return end, table([[] for _ in range(-(-end // bs) - 1)] + [there(end)])
        return 0, [[] for _ in gs]

    # ---- the scheduler -----------------------------------------------------------------------------------------------

    def piece(self, r: Req, start: int, count: int, limit: int) -> int:
        """Where a chunk may end beside states (rule 30)."""
        if not self.align or not any(x["kind"] == "mamba" for x in self.groups) or not self.c["apc"]:
            return count
        b, end, tokens, prompt = min(self.bs), start + count, len(r.tokens), len(r.prompt)
        pend = max(prompt, tokens - 1)
        if start >= pend:
            return count
        due = self.due(r, start, end, None)
        if end < pend:
            cut = end // b * b
            if cut > start or b <= (limit or self.c["budget"]):
                end = cut
        if end <= start:
            return 0
        stops = []
        last = (tokens - 1) // b * b
        if not due:
            if start % b:
                stops.append(-(-start // b) * b)
            stops.append(last)
            if self.fine and (prompt - 1) // self.hb * self.hb > last:
                stops.append((prompt - 1) // self.hb * self.hb)
        if start < r.junction < end:
            stops.append(start + (r.junction - start) // b * b)
        return min([s for s in stops if start < s < end] + [end]) - start

    def new(self, r: Req) -> None:
        r.tables = [[] for _ in self.groups]
        r.considered, r.retired, r.pending = ([0] * len(self.groups) for _ in range(3))
        r.previous = [-1] * len(self.groups)

    def drop(self, r: Req) -> None:
        for table in r.tables:
            self.release(table[::-1])
        self.new(r)

    def step(self, arrivals: list[Req]) -> dict[str, Any]:
        for r in arrivals:
            self.new(r)
            self.waiting.append(r)
        c, budget = self.c, self.c["budget"]
        self.fresh, self.copied = set(), [[] for _ in self.groups]
        limit = c["long_thr"] if len(self.running) + len(self.waiting) > 1 else 0
        scheduled: dict[str, int] = {}
        admitted: dict[str, int] = {}
        preempted: list[str] = []
        for r in list(self.running):
            if budget <= 0:
                break
            if r not in self.running:
                continue
            count = len(r.tokens) - r.computed
            count = min(count, limit or count, budget, c["max_len"] - r.computed - 1)
            if count > 0:
                count = self.piece(r, r.computed, count, limit)
            if count <= 0:
                continue
            while not (done := self.allocate(r, count, None, 0)):
                victim = self.running.pop()
                self.drop(victim)
                victim.computed = 0
                self.waiting.insert(0, victim)
                preempted.append(victim.name)
                if victim is r:
                    break
            if not done:
                break
            scheduled[r.name] = count
            budget -= count
        while not preempted and budget > 0 and self.waiting and len(self.running) < c["max_num_seqs"]:
            r = self.waiting[0]
            hit, hits = self.hit(r)
            count = len(r.tokens) - hit
            count = min(count, limit or count)
            if not c["chunked"] and count > budget:
                break
            count = self.piece(r, hit, min(count, budget), limit)
            if count <= 0 or not self.allocate(r, count, hits, hit):
                break
            self.waiting.pop(0)
            self.running.append(r)
            r.computed = hit
            scheduled[r.name], admitted[r.name] = count, hit
            budget -= count
        pairs = [pair for pairs in self.copied for pair in pairs]
        for source, target in pairs:
            self.release([source])
            self.release([target])
        told = {
            "scheduled": scheduled, "preempted": preempted, "admitted": admitted,
            "tables": {r.name: [list(table) for table in r.tables] for r in self.running},
            "held": [sum(b > 0 for r in self.running for b in r.tables[g]) for g in range(len(self.groups))],
            "num_free": len(self.free), "copies": [list(pair) for pair in pairs],
        }  # fmt: skip
        finished = []
        for r in list(self.running):
            r.computed += scheduled.get(r.name, 0)
            if r.name in scheduled and r.computed == len(r.tokens):
                r.tokens.append(7)
                if len(r.tokens) >= min(c["max_len"], len(r.prompt) + r.output):
                    finished.append(r.name)
                    self.running.remove(r)
                    self.drop(r)
        return told | {"finished": finished, "free": list(self.free)}
