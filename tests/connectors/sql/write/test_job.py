"""`onSchemaChange` of a writer: in every database, columns are added or left out, and types widen."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, Writer, load_writer
from spark_channel.connectors.sql.write.evolve import Evolution
from spark_channel.connectors.sql.write.job import SqlWriter
from spark_channel.connectors.sql.write.sessions import Verdict
from spark_channel.errors import OptionError, SchemaError, TargetError
from tests.connectors.sql.places import Place, open_place

KINDS = ("postgresql", "mysql", "sqlite", "duckdb")
ROWS = pa.table({"id": [2], "Name": ["b"], "n": pa.array([7], pa.int32()), "note text": ["it's"]})


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        made.create("t", {"id": "int NOT NULL", "Name": "text"}, [(1, "a")], "id")
        yield made


@pytest.mark.parametrize("name", ["t", "order", "Their orders " + "x" * 40])
def test_the_unique_index_that_an_upsert_asks_for_can_be_made(place: Place, name: str) -> None:
    """By the statement as it is said, which quotes names and keeps to the longest one."""
    rows = pa.table({"group": [1], "Their number": [2], "v": [3]})
    if name == "t":
        place.run(f"DROP TABLE {place.quoted(name)}")
    place.create(name, {"group": "int NOT NULL", "Their number": "int NOT NULL", "v": "int"}, [])
    writer = writer_of(
        place,
        dbtable=place.quoted(name),
        writemode="upsert",
        keycolumns="group,Their number",
    )
    with pytest.raises(TargetError, match="create a unique index") as raised:
        write(writer, "a", rows)
    place.run(str(raised.value).partition("create a unique index (")[2].rpartition("))")[0] + ")")
    place.run(f"INSERT INTO {place.quoted(name)} VALUES (1, 2, 0)")
    write(writer, "b", rows)
    assert place.read(place.quoted(name)).to_pylist() == rows.to_pylist()


def writer_of(place: Place, **options: Any) -> SqlWriter[Any]:
    writer, _ = load_writer({**place.options, "dbtable": "t", **options})
    assert isinstance(writer, SqlWriter)
    return writer


def write(writer: Writer, job: str, rows: pa.Table) -> None:
    plan = writer.prepare(WriteContext(job, commit="job"), rows.schema)
    task = writer.open(plan, 0, 0)
    try:
        for batch in rows.to_batches():
            task.write(batch)
        receipt = task.close()
    except BaseException:
        task.rollback()
        writer.abort(plan, None)
        raise
    writer.commit(plan, [receipt])


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

    def denied(_session: Any, _alone: Any = None) -> None:
        raise TargetError("not the owner")

    monkeypatch.setattr(writer.database, "altering", denied)
    monkeypatch.setattr(writer.database, "verdict", lambda _error: Verdict.DENIED)
    with pytest.raises(
        TargetError, match=r"not the owner.*grant the right, or have .* ADD COLUMN .n. "
    ):
        writer.prepare(WriteContext("a", commit="job"), ROWS.schema)


def test_a_column_that_another_run_has_just_added_is_taken(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(place, onschemachange="evolve")
    change = Evolution._change
    statements: list[str] = []

    def twice(self: Any, session: Any, statement: str, *more: Any) -> None:
        statements.append(statement)
        place.run(statement)
        change(self, session, statement, *more)

    monkeypatch.setattr(Evolution, "_change", twice)
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


def test_columns_that_the_table_lacks_are_left_out(place: Place) -> None:
    writer = writer_of(place, onschemachange="ignore")
    writer.rehearse(WriteContext("a", commit="job"), ROWS.schema)
    write(writer, "a", ROWS)
    assert state(place) == [{"id": 1, "Name": "a"}, {"id": 2, "Name": "b"}]
    with pytest.raises(SchemaError, match="has none of the rows' columns, which are n"):
        writer_of(place, dbtable="t", onschemachange="ignore").prepare(
            WriteContext("b", commit="job"), pa.schema([("n", pa.int32())])
        )


NARROW = {
    "postgresql": "id integer PRIMARY KEY, n smallint NOT NULL DEFAULT 5, r real, d numeric(6,2)",
    "mysql": "id INT PRIMARY KEY AUTO_INCREMENT, n SMALLINT NOT NULL DEFAULT 5 COMMENT 'it''s, a\nnote', r FLOAT, "
    "d DECIMAL(6,2)",
    "duckdb": "id BIGINT PRIMARY KEY, n SMALLINT NOT NULL DEFAULT 5, r FLOAT, d DECIMAL(6,2)",
    "sqlite": "id INTEGER PRIMARY KEY, n INT2 NOT NULL DEFAULT 5, r DOUBLE, d DECIMAL(6,2)",
}
WIDE = pa.table(
    {
        "id": pa.array([2**40], pa.int64()),
        "n": pa.array([2**31 - 1], pa.int32()),
        "r": [0.1],
        "d": pa.array([Decimal("1234567.125")], pa.decimal128(10, 3)),
        "more": ["x"],
    }
)
KEPT = {"id": 1, "n": -7, "r": 0.5, "d": Decimal("-9999.99"), "more": None}


@pytest.fixture
def narrow(place: Place) -> Place:
    place.run(f"CREATE TABLE w ({NARROW[place.kind]})")
    place.run("INSERT INTO w VALUES (1, -7, 0.5, -9999.99)")
    return place


def test_columns_widen_and_keep_their_values_and_definitions(narrow: Place) -> None:
    with pytest.raises(SchemaError, match=r"column 'id' is|column 'n' is"):
        write(writer_of(narrow, dbtable="w"), "a", WIDE)
    writer = writer_of(narrow, dbtable="w", onschemachange="evolve")
    if narrow.kind == "sqlite":
        with pytest.raises(SchemaError, match="where SQLite can") as raised:
            write(writer, "b", WIDE)
        while True:  # run what it says, until it says nothing more
            for statement in str(raised.value).partition("To change it, run ")[2].split("; "):
                narrow.run(statement)
            try:
                write(writer, "b", WIDE)
                break
            except SchemaError as error:
                raised.value.args = error.args
    else:
        writer.rehearse(WriteContext("b", commit="job"), WIDE.schema)
        assert narrow.read("w").num_columns == 4, "a rehearsal changes nothing"
        write(writer, "b", WIDE)
    assert narrow.read("w").sort_by("id").to_pylist() == [KEPT, *WIDE.to_pylist()]
    write(writer, "c", pa.table({"id": pa.array([3], pa.int64())}))
    default = None if narrow.kind == "sqlite" else 5
    assert narrow.read("w", where="id = 3").to_pylist() == [
        {"id": 3, "n": default, "r": None, "d": None, "more": None}
    ]
    if narrow.kind == "mysql":
        narrow.run("INSERT INTO w (n) VALUES (1)")
        shown = narrow.run("SHOW CREATE TABLE w")
        assert "AUTO_INCREMENT" in shown
        assert "it''s, a" in shown


def test_a_column_that_another_run_has_widened_meanwhile_is_not_made_narrower(
    narrow: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if narrow.kind not in ("postgresql", "mysql"):
        pytest.skip("one process at a time writes the file, or no type changes")
    writer = writer_of(narrow, dbtable="w", onschemachange="evolve")
    altering, other = (
        writer.database.altering,
        "ALTER COLUMN n TYPE" if narrow.kind == "postgresql" else "MODIFY n",
    )

    @contextmanager
    def late(session: Any, place: Any) -> Iterator[None]:
        narrow.run(f"ALTER TABLE w {other} decimal(20,2); UPDATE w SET n = 1.25")
        with altering(session, place):
            yield

    monkeypatch.setattr(writer.database, "altering", late)
    write(writer, "a", WIDE.select(["id", "n"]).slice(0, 0))
    write(
        writer,
        "b",
        pa.table({"id": pa.array([3], pa.int32()), "n": pa.array([2**31 - 1], pa.int32())}),
    )
    assert [str(row["n"]) for row in narrow.read("w").sort_by("id").to_pylist()] == [
        "1.25",
        "2147483647.00",
    ]


def test_rows_that_fit_change_no_type(narrow: Place) -> None:
    rows = pa.table({"id": pa.array([2], pa.int16()), "n": pa.array([3], pa.int8())})
    write(writer_of(narrow, dbtable="w", onschemachange="evolve"), "a", rows)
    kinds = {
        "postgresql": pa.int16(),
        "mysql": pa.int16(),
        "duckdb": pa.int16(),
        "sqlite": pa.int16(),
    }
    assert narrow.read("w").schema.field("n").type == kinds[narrow.kind]


def test_a_type_that_would_lose_values_is_told_with_the_statement(narrow: Place) -> None:
    rows = pa.schema([("id", pa.int64()), ("n", pa.string())])
    writer = writer_of(narrow, dbtable="w", onschemachange="evolve")
    for prepare in (writer.rehearse, writer.prepare):
        with pytest.raises(
            SchemaError, match=r"'n' is string.*each value stays the same.*ALTER TABLE .*n"
        ):
            prepare(WriteContext("a", commit="job"), rows)


def test_a_column_that_the_rows_lost_is_null_by_the_statement_that_is_told(place: Place) -> None:
    place.create("v", {"id": "int NOT NULL", "gone": "int NOT NULL"}, [(1, 5)])
    writer = writer_of(place, dbtable="v", onschemachange="evolve")
    rows = pa.table({"id": [2]})
    with pytest.raises(
        SchemaError, match=r"needs column 'gone'.*To have NULL there, run "
    ) as raised:
        write(writer, "a", rows)
    for statement in str(raised.value).partition("To have NULL there, run ")[2].split("; "):
        place.run(statement)
    write(writer, "b", rows)
    assert place.read("v").sort_by("id").to_pylist() == [
        {"id": 1, "gone": 5},
        {"id": 2, "gone": None},
    ]


def test_a_text_column_gets_the_length_that_was_chosen(place: Place) -> None:
    if place.kind not in ("postgresql", "mysql"):
        pytest.skip("has no lengths of texts")
    place.run("CREATE TABLE x (id INT, s VARCHAR(3) DEFAULT 'abc')")
    rows = pa.table({"id": pa.array([1], pa.int32()), "s": ["longer"]})
    chosen = {"dbtable": "x", "onschemachange": "evolve", "createtablecolumntypes": "s VARCHAR(6)"}
    for job in ("a", "b"):
        write(writer_of(place, **chosen), job, rows)
    place.run("INSERT INTO x (id) VALUES (2)")
    assert sorted(row["s"] for row in place.read("x").to_pylist()) == ["abc", "longer", "longer"]
    with pytest.raises(TargetError):
        write(
            writer_of(place, **chosen),
            "c",
            pa.table({"id": pa.array([1], pa.int32()), "s": ["too long"]}),
        )


def test_what_is_in_the_way_of_a_wider_type_is_told(narrow: Place) -> None:
    if narrow.kind != "postgresql":
        pytest.skip("a view does not hold its columns' types")
    narrow.run("CREATE VIEW seen AS SELECT n FROM w")
    writer = writer_of(narrow, dbtable="w", onschemachange="evolve")
    with pytest.raises(
        TargetError, match=r"view.*'n' of table .* is smallint.*take away.*TYPE integer"
    ):
        writer.prepare(WriteContext("a", commit="job"), WIDE.select(["id", "n"]).schema)


@pytest.mark.parametrize(
    "options",
    [
        {"driver": "sqlite", "uri": ":memory:", "writer": "adbc"},
        {"url": "clickhouse://localhost:8123/shop"},
    ],
    ids=["adbc", "clickhouse"],
)
def test_connectors_that_add_no_columns_say_so(options: dict[str, Any]) -> None:
    with pytest.raises(
        OptionError, match=r"'onSchemaChange' is not supported: add the columns yourself"
    ):
        load_writer({**options, "dbtable": "t", "onSchemaChange": "evolve"})
    load_writer({**options, "dbtable": "t", "onSchemaChange": "fail"})
