"""The jobs whose rows differ from DataX's, with the reason: `python -m tests.datax.differences` makes the table in
docs/migrate.md.

What DataX wrote comes from runs of it (commit 60ea07b, OpenJDK 8u504, TZ=Asia/Shanghai).
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["DIFFERENCES", "Difference", "page"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "migrate.md"
BEGIN, END = "<!-- differences: begin -->", "<!-- differences: end -->"


@dataclass(frozen=True)
class Difference:
    """Rows of a file, read as `kind`: what DataX wrote into a text file, and what is written here; None = dirty row."""

    what: str
    datax: str
    here: str
    why: str
    kind: str
    rows: dict[str | bytes, tuple[str | None, str | None]]
    column: dict[str, Any] = field(default_factory=dict)


DIFFERENCES = (
    Difference(
        "a day or time that does not exist, such as `2024-02-31`, `2024-13-01`, `24:00:00`",
        "a later day: `2024-03-02`, `2025-01-01`, `1970-01-01`",
        "a dirty row",
        "the text has a fault",
        "date",
        {
            "2024-02-31": ("2024-03-02 00:00:00", None),
            "2024-13-01": ("2025-01-01 00:00:00", None),
            "24:00:00": ("1970-01-01 00:00:00", None),
            "2024-01-31 10:00:65": ("2024-01-31 10:01:05", None),
            "1582-10-10": ("1582-10-20 00:00:00", "1582-10-10 00:00:00"),
        },
    ),
    Difference(
        "a time that continues behind the pattern, such as `2024-01-31 10:00`, `2024-01-31T10:00:05`",
        "the day, without the time",
        "the time; a dirty row where the column has a `format`",
        "the time would be lost",
        "date",
        {
            "2024-01-31 10:00": ("2024-01-31 00:00:00", "2024-01-31 10:00:00"),
            "2024-01-31T10:00:05": ("2024-01-31 00:00:00", "2024-01-31 10:00:05"),
        },
    ),
    Difference(
        "a text of another pattern than the column's `format`, such as `2024-01-31` for `yyyyMMdd`",
        "another day: `2023-12-01`",
        "a dirty row",
        "the day is wrong",
        "date",
        {
            "2024-01-31": ("2023-12-01 00:00:00", None),
            "2024013": ("2024-01-03 00:00:00", None),
            "20240131": ("2024-01-31 00:00:00", "2024-01-31 00:00:00"),
        },
        column={"format": "yyyyMMdd"},
    ),
    Difference(
        "a `long` with a fraction, such as `1.9`",
        "`1`",
        "a dirty row; `12.0` is 12 in both",
        "the fraction would be lost",
        "long",
        {"1.9": ("1", None), "12.0": ("12", "12")},
    ),
    Difference(
        "bytes that are not of the file's `encoding`",
        "U+FFFD in their place, also for bytes of databases",
        "a dirty row",
        "the text would be lost",
        "string",
        {b"\xff": ("\ufffd", None), "b": ("b", "b")},
    ),
)
"""Each is a row of the table in docs/migrate.md, and a test."""

OF_JOBS = (
    (
        "NULL of boolean, bit and year columns of databases",
        "`false` or 0",
        "NULL",
        "NULL is not false",
    ),
    (
        "bit strings: MySQL's `bit(8)`, PostgreSQL's `bit(1)` into texts",
        "`true` or `false`",
        "their number, their digits",
        "the bits would be lost",
    ),
    (
        "`timestamptz` of PostgreSQL into TIMESTAMP of MySQL",
        "the machine's time in the session's zone: another instant where the zones differ",
        "the same instant",
        "the time would be hours off",
    ),
    (
        "`timetz` of PostgreSQL into databases (into files it is the machine's time in both)",
        "the machine's time",
        "its text with the zone; a dirty row for `time`",
        "a time of day of another zone needs a day",
    ),
    (
        "a byte order mark at the beginning of a file",
        "a part of the first value",
        "dropped",
        "it is not text",
    ),
    (
        "a file whose name ends with `.gz`, without `compress`",
        "its packed bytes as text",
        "unpacked",
        "the bytes are no rows",
    ),
    (
        "`\\N` in text files of hdfsreader, without `nullFormat`",
        "a text",
        "NULL",
        "Hive writes NULL so, and DataX's page says so",
    ),
    (
        "fractions of seconds, from texts and databases into times of databases",
        "cut to milliseconds, or to seconds for texts",
        "kept to the microsecond that the target holds",
        "nothing is lost",
    ),
)
"""Rows of the table that other tests hold."""


def page() -> str:
    """docs/migrate.md with the table."""
    head = "| what | DataX | here | why |\n|---|---|---|---|\n"
    rows = [(each.what, each.datax, each.here, each.why) for each in DIFFERENCES]
    table = head + "".join(f"| {' | '.join(row)} |\n" for row in (*rows, *OF_JOBS))
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
