"""Nine kinds of split keys, of which one value has 90 % of the rows, or NULL half: the splits are even all the same."""

import datetime as dt
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors import Reader
from spark_channel.connectors.sql.read.quantiles import divisions
from spark_channel.connectors.sql.read.reader import SqlReader
from tests.connectors.sql.places import Place, open_place

_ROWS, _PARTS = 6_000, 8
_MOST = 1.5 * _ROWS / _PARTS
_COMMON = 2_500
_FIRST = dt.datetime(2001, 1, 1)
_KINDS: Mapping[str, Callable[[int], Any]] = {
    "number": lambda n: n - 3_000,
    "decimal": lambda n: f"{n / 8 - 100:.3f}",
    "real": lambda n: n / 7,
    "words": lambda n: f"it's {n:05d}",
    "day": lambda n: (_FIRST + dt.timedelta(days=n)).date().isoformat(),
    "moment": lambda n: (_FIRST + dt.timedelta(hours=n)).isoformat(
        sep=" ", timespec="microseconds"
    ),
    "identifier": lambda n: str(uuid.UUID(int=n << 64)),
    "octets": lambda n: n.to_bytes(4, "big"),
    "flag": lambda n: n == _COMMON,
}
_TYPES: Mapping[str, Mapping[str, str]] = {
    "postgresql": {
        "number": "integer",
        "decimal": "numeric",
        "real": "double precision",
        "words": "text",
        "day": "date",
        "moment": "timestamptz",
        "identifier": "uuid",
        "octets": "bytea",
        "flag": "boolean",
    },
    "mysql": {
        "number": "INT",
        "decimal": "DECIMAL(12, 3)",
        "real": "DOUBLE",
        "words": "VARCHAR(60)",
        "day": "DATE",
        "moment": "DATETIME(6)",
        "identifier": "UUID",
        "octets": "VARBINARY(16)",
        "flag": "BOOLEAN",
    },
    "sqlite": {
        "number": "INTEGER",
        "decimal": "DECIMAL(12, 3)",
        "real": "DOUBLE",
        "words": "TEXT",
        "day": "DATE",
        "moment": "TIMESTAMP",
        "identifier": "TEXT",
        "octets": "BLOB",
        "flag": "BOOLEAN",
    },
    "duckdb": {
        "number": "INTEGER",
        "decimal": "DECIMAL(12, 3)",
        "real": "DOUBLE",
        "words": "VARCHAR",
        "day": "DATE",
        "moment": "TIMESTAMP",
        "identifier": "UUID",
        "octets": "BLOB",
        "flag": "BOOLEAN",
    },
}


@pytest.fixture(params=list(_TYPES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as opened:
        yield opened


def _literal(place: Place, value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return "NULL" if value is None else str(value)
    if isinstance(value, bytes):
        escaped = "".join(f"\\x{byte:02x}" for byte in value)
        forms = {"postgresql": f"'\\x{value.hex()}'", "duckdb": f"'{escaped}'::BLOB"}
        return forms.get(place.kind, f"X'{value.hex()}'")
    return "'" + str(value).replace("'", "''") + "'"


def _table(place: Place, key: str = "PRIMARY KEY", name: str = "t") -> None:
    """Rows 1 to `_ROWS`: of column c_KIND nine in ten have one value, of n_KIND every second one is NULL."""
    types = _TYPES[place.kind]
    columns = [f"{half}_{kind} {types[kind]}" for kind in _KINDS for half in "cn"]
    integer = "INTEGER" if place.kind == "sqlite" else "BIGINT"
    place.run(f"CREATE TABLE {name} (id {integer} {key}, {', '.join(columns)})")
    rows = []
    for number in range(1, _ROWS + 1):
        common = _COMMON if number % 10 else number
        cells = [
            _literal(place, value)
            for make in _KINDS.values()
            for value in (make(common), make(number) if number % 2 else None)
        ]
        rows.append(f"({number}, {', '.join(cells)})")
    for start in range(0, _ROWS, 1_000):
        place.run(f"INSERT INTO {name} VALUES {', '.join(rows[start : start + 1_000])}")


def _read(reader: Reader, parts: int = _PARTS) -> list[list[int]]:
    """The ids of each split."""
    reader.schema()
    return [
        [value for batch in reader.read(split) for value in batch["id"].to_pylist()]
        for split in reader.split(parts)
    ]


def _faults(place: Place, **options: Any) -> dict[str, list[int]]:
    """The columns by which a row is not read once, or a split is too large, with the sizes."""
    faults = {}
    for column in (f"{half}_{kind}" for kind in _KINDS for half in "cn"):
        splits = _read(place.reader(columns="id", partitionColumn=column, **options))
        sizes = [len(ids) for ids in splits]
        once = sorted(number for ids in splits for number in ids) == list(range(1, _ROWS + 1))
        if not once or max(sizes) > _MOST or len(sizes) > 2 * _PARTS:
            faults[column] = sizes
    return faults


def test_a_value_of_most_rows_and_null_of_half_are_divided(place: Place) -> None:
    _table(place)
    assert _faults(place) == {}


def test_without_a_key_only_numbered_rows_are_divided(place: Place) -> None:
    """By DuckDB's rowid. Else the value stays one split, and the plan says so: no row is lost for it."""
    place.run(
        f"CREATE TABLE t (id {_TYPES[place.kind]['number']}, k {_TYPES[place.kind]['words']})"
    )
    rows = [f"({number}, {'NULL' if number % 2 else repr(str(number))})" for number in range(3_000)]
    place.run(f"INSERT INTO t VALUES {', '.join(rows)}")
    place.run("CREATE VIEW v AS SELECT * FROM t")
    for source in ("t", "v"):
        reader = place.reader(source, partitionColumn="k")
        splits = _read(reader)
        assert sorted(number for ids in splits for number in ids) == list(range(3_000))
        is_numbered = source == "t" and place.kind == "duckdb"
        assert (max(map(len, splits)) < 1_000) == is_numbered, list(map(len, splits))
        planned = reader.split(_PARTS)
        (said,) = divisions(planned) or reader.remarks(planned)
        assert said.endswith("splits by rowid") if is_numbered else "they stay one split" in said


def test_a_condition_and_a_division_hold_together(place: Place) -> None:
    _table(place)
    where = "id > 1000 AND (c_words <> 'it''s 00007' OR id = 7)"
    splits = _read(place.reader(columns="id", partitionColumn="c_words", where=where))
    assert sorted(number for ids in splits for number in ids) == list(range(1_001, _ROWS + 1))
    assert max(map(len, splits)) <= _MOST * 5 / 6


def test_short_statements_read_a_division(place: Place) -> None:
    """A limit makes statements short: by the key that divides, each row once."""
    _table(place)
    for column in ("c_words", "n_number"):
        reader = place.reader(columns="id", partitionColumn=column, statementSeconds=0.001)
        splits = _read(reader)
        assert sorted(number for ids in splits for number in ids) == list(range(1, _ROWS + 1))
        assert max(map(len, splits)) <= _MOST


@pytest.mark.parametrize("common", [1, 3])
def test_a_division_is_one_statement_for_all_values(
    place: Place, common: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none where no value needs it. PostgreSQL is asked what its login may read, too."""
    integer = _TYPES[place.kind]["number"]
    place.run(f"CREATE TABLE t (id {integer} PRIMARY KEY, k {integer}, u {integer})")
    rows = [f"({n}, {n % common * 10_000 if n % 10 else n}, {n})" for n in range(1, 4_001)]
    place.run(f"INSERT INTO t VALUES {', '.join(rows)}")
    statements: list[str] = []
    reader = place.reader()
    assert isinstance(reader, SqlReader)
    with reader.connect("plan") as session:
        kind: Any = type(session)
    asked = kind.rows

    def counted(self: Any, sql: str, *rest: Any) -> Any:
        statements.append(sql)
        return asked(self, sql, *rest)

    monkeypatch.setattr(kind, "rows", counted)
    counts = {}
    for column in ("u", "k"):
        reader = place.reader(partitionColumn=column)
        reader.schema()
        statements.clear()
        splits = reader.split(10)
        counts[column] = len(statements)
        assert bool(divisions(splits)) == (column == "k")
    assert counts["k"] - counts["u"] == (2 if place.kind == "postgresql" else 1), statements


def test_rows_that_change_meanwhile_are_read_once(place: Place) -> None:
    """An UPDATE of other columns moves a row in PostgreSQL, and not out of its part."""
    _table(place)
    reader = place.reader(columns="id", partitionColumn="c_number")
    reader.schema()
    found: list[int] = []
    for split in reader.split(_PARTS):
        found += [value for batch in reader.read(split) for value in batch["id"].to_pylist()]
        place.run("UPDATE t SET c_words = 'other' WHERE id % 3 = 0")
    assert sorted(found) == list(range(1, _ROWS + 1))
