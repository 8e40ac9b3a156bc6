"""Damages a file as disks, editors, spreadsheets and half-understood formats do."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

ODD = ("", " ", "nan", "-inf", "1e400", "-1", "0", "0.5", "1_0", "99999999999999999999", "1e9", "true", "null",
       "None", "[]", "{}", '"', '"x"', "é漢", "\x00", "2023-11-16 18:15:46.68059001", "9999-01-01 0:0", "1,5", "'",
       "=1+1", "-0.0", "1e-320", "18446744073709551616", "٣", "1:2", "../../etc", "%s", "\\",
       "[1, [2]]", '{"a": 1}')  # fmt: skip
TOKEN = re.compile(rb'"[^"\n]*"|-?\d+\.?\d*(?:[eE][-+]?\d+)?|[A-Za-z_]\w*')
Mutation = Callable[[random.Random, bytes], bytes]


def a_bit(r: random.Random, data: bytes) -> bytes:
    at = r.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << r.randrange(8)]) + data[at + 1 :]


def cut(r: random.Random, data: bytes) -> bytes:
    return data[: r.randrange(len(data))]


def hole(r: random.Random, data: bytes) -> bytes:
    at = r.randrange(len(data))
    return data[:at] + data[at + r.randint(1, 40) :]


def zeros(r: random.Random, data: bytes) -> bytes:
    """As a crash leaves a file whose blocks were not written yet."""
    at, size = r.randrange(len(data)), r.randint(1, 64)
    return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]


def noise(r: random.Random, data: bytes) -> bytes:
    at = r.randrange(len(data))
    return data[:at] + r.randbytes(r.randint(1, 8)) + data[at:]


def twice(r: random.Random, data: bytes) -> bytes:
    at = r.randrange(len(data))
    return data[:at] + data[at : at + r.randint(1, 200)] + data[at:]


def token(r: random.Random, data: bytes) -> bytes:
    """Another value, name or key in place of one."""
    found = list(TOKEN.finditer(data))
    if not found:
        return noise(r, data)
    one = r.choice(found)
    other = r.choice(found)[0] if r.random() < 0.3 else r.choice(ODD).encode()
    return data[: one.start()] + other + data[one.end() :]


def line(r: random.Random, data: bytes) -> bytes:
    """A line lost, doubled, moved, emptied, cut or joined to the next."""
    lines = data.split(b"\n")
    at, other = r.randrange(len(lines)), r.randrange(len(lines))
    kind = r.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = b""
    elif kind == 4:
        lines[at] = lines[at][: r.randint(0, len(lines[at]))]
    elif at + 1 < len(lines):
        lines[at : at + 2] = [lines[at] + lines[at + 1]]
    return b"\n".join(lines)


def letters(r: random.Random, data: bytes) -> bytes:
    """One of its marks is another one throughout, as with another dialect."""
    marks = [mark for mark in b",;\t\"'.:{}[] \n" if mark in data] or [data[0]]
    return data.replace(bytes([r.choice(marks)]), r.choice([b";", b",", b"\t", b"", b"'", b"|", b"\r\n", b" "]))


MUTATIONS: tuple[Mutation, ...] = (a_bit, cut, hole, zeros, noise, twice, token, token, token, line, line, letters)


def mutated(r: random.Random, data: bytes) -> bytes:
    """One mutation, or now and then a few."""
    for _ in range(r.choice([1, 1, 1, 2, 4])):
        if data:
            data = r.choice(MUTATIONS)(r, data)
    return data
