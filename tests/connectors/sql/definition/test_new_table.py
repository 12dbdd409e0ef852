"""`createTable` keys and full: a copy of a table is a table. The databases themselves judge, by what they refuse."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel.connectors.sql.definition import free_names
from spark_channel.local import LocalEngine
from tests.behaviour.exactly_once.test_own_source import copy, end
from tests.connectors.sql.places import Place, open_place

KINDS = ("postgresql", "mysql", "sqlite", "duckdb")
PAIRS = [(source, target) for source in KINDS for target in KINDS]


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def ends(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """Source and target: separate databases, with a table of 50 orders in the source."""
    one, two = tmp_path / "source", tmp_path / "target"
    one.mkdir()
    two.mkdir()
    source_kind, target_kind = request.param
    with open_place(request, source_kind, one) as source:
        key = source.quoted("id")
        columns = {"id": "int NOT NULL", "code": "int NOT NULL", "shop": "int", "note": "text"}
        source.create("orders", columns, [(n, -n, n % 7, f"n{n}") for n in range(50)], key)
        unique = f"CREATE UNIQUE INDEX orders_code ON {source.quoted('orders')} ({source.quoted('code')})"
        source.run(unique)
        with open_place(request, target_kind, two) as target:
            yield source, target


def refuses(place: Place, *row: object) -> bool:
    """Whether the database refuses a row for the copy."""
    values = ", ".join("NULL" if value is None else repr(value) for value in row)
    try:
        place.run(f"INSERT INTO {place.in_schema('copy')} VALUES ({values})")
    except Exception:
        return True
    return False


@pytest.mark.parametrize("ends", PAIRS, indirect=True)
def test_keys(engine: LocalEngine, ends: tuple[Place, Place]) -> None:
    source, target = ends
    copy(engine, end(source, "orders"), end(target, "copy", createTable="keys"))
    assert target.read("copy").num_rows == 50
    assert refuses(target, 7, 100, 1, "a second row of the key")
    assert refuses(target, 100, None, 1, "NULL in a column that is NOT NULL")
    assert not refuses(target, 101, -7, None, "what only an index would refuse")


@pytest.mark.parametrize("ends", PAIRS, indirect=True)
def test_full(engine: LocalEngine, ends: tuple[Place, Place]) -> None:
    source, target = ends
    copy(engine, end(source, "orders"), end(target, "copy", createTable="full"))
    assert target.read("copy").num_rows == 50
    assert refuses(target, 7, 100, 1, "a second row of the key")
    assert refuses(target, 101, -7, None, "a second row of the unique index")
    assert not refuses(target, 102, 102, None, "a row like any other")


@pytest.mark.parametrize("ends", [(kind, kind) for kind in KINDS], indirect=True)
def test_evolve_lets_null_in_where_the_source_has_it(
    engine: LocalEngine, ends: tuple[Place, Place]
) -> None:
    """`code` may be NULL in the source by now, `shop` is no longer read, and `id` stays the key."""
    source, target = ends
    copy(engine, end(source, "orders"), end(target, "copy", createTable="keys"))
    source.create("later", {"id": "int NOT NULL", "code": "int"}, [(90, None), (91, 91)], "id")
    later = end(target, "copy", createTable="auto", onSchemaChange="evolve")
    copy(engine, end(source, "later"), later)
    assert target.read("copy").num_rows == 52
    assert refuses(target, 90, 100, 1, "a second row of the key")


@pytest.mark.parametrize("ends", [(kind, kind) for kind in KINDS], indirect=True)
def test_auto_takes_keys_where_the_rows_have_some(
    engine: LocalEngine, ends: tuple[Place, Place]
) -> None:
    source, target = ends
    copy(engine, end(source, "orders"), end(target, "copy", createTable="auto"))
    assert refuses(target, 7, 100, 1, "a second row of the key")
    assert refuses(target, 100, None, 1, "NULL in a column that is NOT NULL")
    listed = f"SELECT * FROM {source.in_schema('orders')}"
    copy(engine, end(source, query=listed), end(target, "of_query", createTable="auto"))
    assert target.read("of_query").num_rows == 50


@pytest.mark.parametrize("ends", [(kind, kind) for kind in KINDS], indirect=True)
def test_columns_alone_are_the_default(engine: LocalEngine, ends: tuple[Place, Place]) -> None:
    source, target = ends
    copy(engine, end(source, "orders"), end(target, "copy"))
    assert not refuses(target, 7, None, 1, "no key, and NULL")


def test_names_that_are_taken_or_too_long_get_a_number() -> None:
    name_of = free_names({"a", "a_1", "ä" * 5}, 10)
    assert [name_of("a"), name_of("a"), name_of("b")] == ["a_2", "a_3", "b"]
    assert name_of("ä" * 5) == "ä" * 4 + "_1"
    assert name_of("ä" * 6) == "ä" * 4 + "_2"
    assert free_names({"x" * 99}, None)("x" * 99) == "x" * 99 + "_1"
