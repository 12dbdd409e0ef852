"""`onSchemaChange=evolve` of a writer: columns that its table lacks are added, in every database."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, Writer, load_writer
from spark_channel.connectors.sql.writer import SqlWriter
from spark_channel.errors import OptionError, SchemaError, TargetError
from tests.connectors.sql.places import Place, open_place

KINDS = ("postgresql", "mysql", "sqlite", "duckdb")
ROWS = pa.table({"id": [2], "Name": ["b"], "n": pa.array([7], pa.int32()), "note text": ["it's"]})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        made.create("t", {"id": "int NOT NULL", "Name": "text"}, [(1, "a")], "id")
        yield made


def writer_of(place: Place, **options: Any) -> SqlWriter:
    writer, _ = load_writer({**place.options, "dbtable": "t", **options})
    assert isinstance(writer, SqlWriter)
    return writer


def write(writer: Writer, job: str, rows: pa.Table) -> None:
    plan = writer.prepare(WriteContext(job, commit="job"), rows.schema)
    task = writer.open(plan, 0, 0)
    for batch in rows.to_batches():
        task.write(batch)
    writer.commit(plan, [task.close()])


def state(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.read().sort_by("id").to_pylist()
    return found


def test_new_columns_are_refused_or_added(place: Place) -> None:
    with pytest.raises(SchemaError, match=r"column 'n' is not in table .*onSchemaChange=evolve"):
        write(writer_of(place), "a", ROWS)
    writer = writer_of(place, onschemachange="evolve")
    writer.rehearse(WriteContext("b", commit="job"), ROWS.schema)
    assert state(place) == [{"id": 1, "Name": "a"}], "a rehearsal changes nothing"
    write(writer, "b", ROWS)
    write(writer, "c", ROWS.slice(0, 0))
    assert state(place) == [
        {"id": 1, "Name": "a", "n": None, "note text": None},
        {"id": 2, "Name": "b", "n": 7, "note text": "it's"},
    ]


def test_a_run_that_died_behind_the_new_columns_is_run_again(place: Place) -> None:
    writer = writer_of(place, onschemachange="evolve")
    context = WriteContext("a", commit="job", txn=("orders", 1))
    writer.prepare(context, ROWS.schema)
    assert state(place) == [{"id": 1, "Name": "a", "n": None, "note text": None}]
    again = WriteContext("b", commit="job", txn=("orders", 1))
    plan = writer.prepare(again, ROWS.schema)
    task = writer.open(plan, 0, 0)
    task.write(ROWS.to_batches()[0])
    writer.commit(plan, [task.close()])
    assert [row["n"] for row in state(place)] == [None, 7]


def test_a_right_that_is_missing_is_told_with_the_statement(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(place, onschemachange="evolve")

    def denied(_self: SqlWriter, _session: Any, _statement: str) -> None:
        raise TargetError("not the owner")

    monkeypatch.setattr(type(writer), "alter", denied)
    monkeypatch.setattr(type(writer), "is_denied", lambda _self, error: "owner" in str(error))
    with pytest.raises(TargetError, match=r"not the owner.*grant the right, or have .* ADD COLUMN .n. "):
        writer.prepare(WriteContext("a", commit="job"), ROWS.schema)


def test_a_column_that_another_run_has_just_added_is_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, alter = writer_of(place, onschemachange="evolve"), SqlWriter.alter
    statements: list[str] = []

    def twice(self: SqlWriter, session: Any, statement: str) -> None:
        statements.append(statement)
        place.run(statement)
        alter(self, session, statement)

    monkeypatch.setattr(type(writer), "alter", twice)
    if place.kind == "duckdb":
        pytest.skip("one process at a time has the file")
    write(writer, "a", ROWS)
    assert len(statements) == 2
    assert [row["n"] for row in state(place)] == [None, 7]


@pytest.mark.parametrize(
    "rows",
    [
        pa.schema([("id", pa.int64()), ("Name", pa.int64()), ("n", pa.int32())]),
        pa.schema([("id", pa.int64()), ("n", pa.int32()), ("unknown", pa.null())]),
        pa.schema([("Name", pa.string()), ("n", pa.int32())]),
    ],
    ids=["another column does not fit", "a new column has no type", "a needed column is missing"],
)
def test_rows_that_do_not_fit_leave_the_table_as_it_is(place: Place, rows: pa.Schema) -> None:
    writer = writer_of(place, onschemachange="evolve")
    for prepare in (writer.rehearse, writer.prepare):
        with pytest.raises(SchemaError):
            prepare(WriteContext("a", commit="job"), rows)
    assert state(place) == [{"id": 1, "Name": "a"}]


def test_rows_may_have_new_columns_alone(place: Place) -> None:
    place.create("u", {"old": "text"}, [("a",)])
    writer, _ = load_writer({**place.options, "dbtable": "u", "onschemachange": "evolve"})
    rows = pa.table({"n": pa.array([7], pa.int32())})
    writer.rehearse(WriteContext("a", commit="job"), rows.schema)
    write(writer, "a", rows)
    found = place.read("u").to_pylist()
    assert sorted(found, key=str) == [{"old": "a", "n": None}, {"old": None, "n": 7}]


def test_a_new_column_has_the_type_that_was_chosen(place: Place) -> None:
    writer = writer_of(place, onschemachange="evolve", createTableColumnTypes="n BIGINT")
    write(writer, "a", ROWS)
    assert place.read().schema.field("n").type == pa.int64()


@pytest.mark.parametrize(
    "options",
    [
        {"driver": "sqlite", "uri": ":memory:", "writer": "adbc"},
        {"url": "clickhouse://localhost:8123/shop"},
    ],
    ids=["adbc", "clickhouse"],
)
def test_connectors_that_add_no_columns_say_so(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"'onSchemaChange' is not supported: add the columns yourself"):
        load_writer({**options, "dbtable": "t", "onSchemaChange": "evolve"})
    load_writer({**options, "dbtable": "t", "onSchemaChange": "fail"})
