"""What spark-channel reads in another way than other readers, on purpose: the one list, for tests and docs.

`python -m tests.behaviour.differential.differences` writes it into docs/values.md.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.behaviour.differential.tables import Column, Found

__all__ = [
    "DIFFERENCES",
    "PAGE",
    "REFUSALS",
    "Difference",
    "Refusal",
    "accepted",
    "page",
    "refused_on_purpose",
]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "values.md"


@dataclass(frozen=True)
class Difference:
    """One row of the page.

    `same`: whether a pair of kinds, (ours, theirs), of one value is this difference; then only the kind differs.
    `whole`: whether that of two columns is; then their values are not compared. `alike`: makes a value of either reader
    what both would have without this difference. `renamed`: whether a pair of names is this difference.
    """

    source: str
    reader: str
    value: str
    theirs: str
    ours: str
    why: str
    forms: tuple[str, ...] = ()
    same: Callable[[str, str], bool] = lambda _ours, _theirs: False
    whole: Callable[[str, str], bool] = lambda _ours, _theirs: False
    alike: Callable[[Any], Any] | None = None
    renamed: Callable[[str, str], bool] = lambda _ours, _theirs: False


DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "Parquet",
        "DuckDB",
        "FLOAT16",
        "a float of 32 bits",
        "a float of 16 bits",
        "the type of the file is kept; the value is the same",
        ("parquet",),
        same=lambda ours, theirs: (ours, theirs) == ("float16", "float32"),
    ),
    Difference(
        "Parquet",
        "DuckDB",
        "INT96, and timestamps of files without logical types",
        "a timestamp without a zone",
        "an instant (timestamp with zone)",
        "the format defines both in UTC, and Spark reads them so",
        ("parquet", "delta"),
        same=lambda ours, theirs: (ours, theirs) == ("instant", "timestamp"),
    ),
    Difference(
        "Parquet",
        "DuckDB",
        "TIME in UTC",
        "a time with a zone",
        "a time",
        "Arrow and Spark have no time with a zone; the value is the same",
        ("parquet",),
        same=lambda ours, theirs: (ours, theirs) == ("time", "time with time zone"),
    ),
    Difference(
        "Parquet",
        "DuckDB",
        "VARIANT",
        "a variant",
        "a struct of the binary fields that the file holds",
        "Arrow has no variant type; no byte is changed",
        ("parquet",),
        whole=lambda ours, theirs: theirs == "variant" and ours.startswith("struct<"),
    ),
    Difference(
        "Parquet",
        "DuckDB",
        "GEOMETRY, GEOGRAPHY",
        "a geometry",
        "binary: the well-known binary form that the file holds",
        "Arrow has no geometry type; no byte is changed",
        ("parquet",),
        whole=lambda ours, theirs: (ours, theirs) == ("binary", "geometry"),
    ),
    Difference(
        "Parquet",
        "DuckDB",
        "columns without a name, or whose names differ in case only",
        "`C1`, `a_1`",
        "the names of the file",
        "the names of the file are kept",
        ("parquet",),
        renamed=lambda ours, theirs: (
            not ours or bool(re.fullmatch(re.escape(ours) + r"_\d+", theirs))
        ),
    ),
    Difference(
        "PostgreSQL",
        "psql",
        "`money`",
        "`$1,234.50`",
        "`1234.50`",
        "psql shows it by the server's `lc_monetary`; a server of another locale reads that as another amount",
        ("postgresql",),
        alike=lambda value: (
            re.sub("[$,]", "", value)
            if isinstance(value, str) and re.fullmatch(r"-?\$[0-9,]+\.[0-9]{2}", value)
            else value
        ),
    ),
)


@dataclass(frozen=True)
class Refusal:
    """What other readers read and spark-channel refuses, on purpose: another row of the page."""

    source: str
    value: str
    message: str
    todo: str
    forms: tuple[str, ...] = ()


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "Parquet",
        "a row group that Arrow's reader does not read whole, such as lists whose first page has no values",
        r"has \d+ rows, and the footer says",
        "write the file again with larger pages",
        ("parquet",),
    ),
)


def refused_on_purpose(form: str, error: Exception) -> bool:
    """Whether a well-formed input of this format may be refused so."""
    return any(form in each.forms and re.search(each.message, str(error)) for each in REFUSALS)


def accepted(form: str, ours: Found, theirs: Found) -> tuple[Found, Found]:
    """Both tables, without the differences on purpose."""
    if len(ours.columns) != len(theirs.columns):
        return ours, theirs
    rules = [rule for rule in DIFFERENCES if form in rule.forms]
    mine: list[Column] = []
    other: list[Column] = []
    for a, b in zip(ours.columns, theirs.columns, strict=True):
        if a.name != b.name and any(rule.renamed(a.name, b.name) for rule in rules):
            b = replace(b, name=a.name)
        if a.kind != b.kind:
            if any(rule.whole(a.kind, b.kind) for rule in rules):
                b = replace(a, name=b.name)
            elif _only_kinds(rules, a.kind, b.kind):
                b = replace(b, kind=a.kind)
        for rule in rules:
            if rule.alike is not None:
                a, b = (replace(each, values=list(map(rule.alike, each.values))) for each in (a, b))
        mine.append(a)
        other.append(b)
    return Found(tuple(mine)), Found(tuple(other))


_LEAF = re.compile(r"decimal\(\d+,-?\d+\)|[^<>,:]+")


def _only_kinds(rules: list[Difference], ours: str, theirs: str) -> bool:
    mine, other = _LEAF.findall(ours), _LEAF.findall(theirs)
    return _LEAF.sub("", ours) == _LEAF.sub("", theirs) and all(
        a == b or any(rule.same(a, b) for rule in rules) for a, b in zip(mine, other, strict=True)
    )


_HEAD = """# Values in other readers

This page is for those who compare a copy with what another program reads. A value that is not listed here arrives as
these readers show it, with the same type, or spark-channel refuses it with an error that names it.

The tests read tables and files by spark-channel and by programs that share no code with it: `psql`, the `mariadb`
client, Python's `sqlite3` and `json`, DuckDB, Spark's own sources and pyorc. They compare each value and each type,
and accept these differences only.

## Values that look different

| source | value | reader | shows | spark-channel reads | why |
|---|---|---|---|---|---|
"""
_REFUSED = """
## Values that other readers show and spark-channel refuses

| source | value | what to do |
|---|---|---|
"""
_TAIL = """
The types that each connector reads and writes are on its own page: [files](files.md#types),
[PostgreSQL](postgresql.md#types), [MySQL](mysql.md#types), [SQLite](embedded.md#types), [DuckDB](embedded.md#types).

*`python -m tests.behaviour.differential.differences` makes this page from the list that the tests use.*
"""


def page() -> str:
    shown = [
        f"| {row.source} | {row.value} | {row.reader} | {row.theirs} | {row.ours} | {row.why} |"
        for row in DIFFERENCES
    ]
    refused = [f"| {row.source} | {row.value} | {row.todo} |" for row in REFUSALS]
    return _HEAD + "\n".join(shown) + "\n" + _REFUSED + "\n".join(refused) + "\n" + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
