"""Recognises files that are not traces by their first bytes, and says what they are and what to do."""

from __future__ import annotations

_STRANGERS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the data it stands for: `git lfs pull` fetches that"),
    (b"/annex/objects/", "a git-annex pointer, not the data it stands for: `git annex get` fetches that"),
    (b"../.git/annex", "a git-annex pointer, not the data it stands for: `git annex get` fetches that"),
    (b"PK\x03\x04", "a zip archive (or an Excel sheet): unpack it, or save the sheet as CSV"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it with `zstd -d`"),
    (b"\x04\x22\x4d\x18", "compressed with lz4: unpack it with `lz4 -d`"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"),
    (b"Rar!", "a rar archive: unpack it"),
    (b"ARROW1", "an Arrow (Feather) file: save it as Parquet or CSV"),
    (b"\xff\xff\xff\xff", "an Arrow stream: save it as Parquet or CSV"),
    (b"ORC", "an ORC file: save it as Parquet or CSV"),
    (b"Obj\x01", "an Avro file: save it as Parquet or CSV"),
    (b"SQLite format 3", "an SQLite database: export the table as CSV"),
    (b"\x89HDF", "an HDF5 file: save the table as Parquet or CSV"),
    (b"\x93NUMPY", "a NumPy array: save it as CSV with a line of column names"),
    (b"\xd0\xcf\x11\xe0", "an old Excel sheet: save it as CSV"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a picture"),
    (b"\x7fELF", "a program"),
)


def stranger(head: bytes) -> str:
    """What a file that begins like this is, and what to do; "" where it may be a trace."""
    for magic, what in _STRANGERS:
        if head.startswith(magic):
            return what
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return "a Python pickle, which is not read (it may run code): save it as CSV, JSON lines or Parquet"
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it"
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "a web page, perhaps of the file instead of the file: download the raw file"
    if start.startswith(b"<?xml"):
        return "XML: save it as CSV or JSON lines"
    return ""


def encoding_of(head: bytes) -> str:
    """The encoding of text that begins like this: UTF-8, or UTF-16 or UTF-32 by their marks or NUL bytes."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    even, odd = head[0:64:2], head[1:64:2]
    if len(odd) > 3 and not any(odd) and all(even):
        return "utf-16-le"
    if len(odd) > 3 and not any(even) and all(odd):
        return "utf-16-be"
    return "utf-8-sig"
