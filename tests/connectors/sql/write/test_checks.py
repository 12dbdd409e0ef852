"""A table that skips rows, or keeps what is deleted, and reports success: the write says so, and keeps nothing."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.errors import BatchRefusedError, TargetError
from spark_channel.options import CommitMode
from tests.connectors.sql.places import Place, open_place

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "skip", "c"]})
FEED = pa.table({"id": [1, 2], "v": ["a", None], "_op": ["insert", "delete"]})
PG_TRIGGER = """
CREATE FUNCTION {schema}skip() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN IF NEW.v = 'skip' THEN RETURN NULL; END IF; RETURN NEW; END $$;
CREATE TRIGGER skips BEFORE {event} ON t FOR EACH ROW EXECUTE FUNCTION {schema}skip()
"""
SQLITE_TRIGGER = (
    "CREATE TRIGGER skips BEFORE {event} ON t WHEN NEW.v = 'skip' BEGIN SELECT RAISE(IGNORE); END"
)
TRIGGERED = ("postgresql", "adbc-postgresql", "sqlite", "adbc-sqlite")
_numbers = itertools.count()
BOTH = pytest.mark.parametrize("commit", ["job", "task"])


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as opened:
        yield opened


def on(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", kinds, indirect=True)


def make(place: Place, *, event: str = "INSERT") -> None:
    place.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20))")
    place.run(
        (PG_TRIGGER if place.database == "postgresql" else SQLITE_TRIGGER).format(
            event=event, schema=""
        )
    )


def write(
    place: Place,
    commit: CommitMode,
    rows: pa.Table = ROWS,
    *,
    overwrite: bool = False,
    refused: list[tuple[dict[str, Any], str]] | None = None,
    **more: Any,
) -> int:
    """The rows that the write reports."""
    named = {"dbtable": place.in_schema("t"), **{key.lower(): value for key, value in more.items()}}
    options = {"writer" if key == "reader" else key: value for key, value in place.options.items()}
    if refused is not None:
        named["maxdirtyrows"] = "unlimited"
    writer, _ = load_writer({**options, **named})
    plan = writer.prepare(
        WriteContext(f"stores-{next(_numbers)}", commit=commit, overwrite=overwrite), rows.schema
    )
    try:
        task = writer.open(plan, 0, 0)
        if refused is not None:
            task.tolerant = True
            task.refused = lambda row, why: refused.append((row.to_pylist()[0], why))
        try:
            hand_over(task, rows, refused)
            receipt = task.close()
        except BaseException:
            task.rollback()
            raise
        writer.commit(plan, [receipt])
    except BaseException:
        writer.abort(plan, None)
        raise
    return receipt.rows


def hand_over(task: Any, rows: pa.Table, refused: list[tuple[dict[str, Any], str]] | None) -> None:
    from spark_channel.connectors.base.contract import bisect_refused

    for batch in rows.to_batches():
        if refused is None:
            task.write(batch)
        else:
            bisect_refused(batch, task.write, task.refused)


@contextmanager
def refuses(text: str) -> Iterator[None]:
    with pytest.raises(TargetError) as caught:
        yield
    assert text in str(caught.value)


@on(*TRIGGERED)
@BOTH
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"overwrite": True},
        {"rowsPerSecond": "1M"},
        {"writeMode": "upsert"},
        {"writeMode": "skipExisting"},
        {"writeMode": "upsert", "rowsPerSecond": "1M"},
    ],
    ids=lambda more: "-".join(map(str, more.values())) or "append",
)
def test_rows_that_a_trigger_skips_are_an_error(
    place: Place, commit: CommitMode, more: dict[str, Any]
) -> None:
    make(place)
    if "writeMode" in more:
        more = {**more, "keyColumns": "id"}
    with refuses("stored 2 of 3 rows"):
        write(place, commit, **more)
    assert place.read().num_rows == 0


@on(*TRIGGERED)
@BOTH
def test_updates_that_a_trigger_skips_are_an_error(place: Place, commit: CommitMode) -> None:
    make(place, event="UPDATE")
    place.run("INSERT INTO t VALUES (2, 'old')")
    with refuses("stored 2 of 3 rows"):
        write(place, commit, writeMode="upsert", keyColumns="id")
    assert place.read()["v"].to_pylist() == ["old"]


@on(*TRIGGERED)
@BOTH
def test_a_change_feed_writes_and_deletes_all_or_nothing(place: Place, commit: CommitMode) -> None:
    make(place)
    place.run("INSERT INTO t VALUES (2, 'old')")
    skipped = pa.table({"id": [1, 2], "v": ["skip", None], "_op": ["insert", "delete"]})
    with refuses("stored 0 of 1 rows"):
        write(place, commit, skipped, writeMode="apply", keyColumns="id")
    if place.database == "postgresql":
        place.run(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
            "CREATE TRIGGER keeps BEFORE DELETE ON t FOR EACH ROW EXECUTE FUNCTION keep()"
        )
    else:
        place.run("CREATE TRIGGER keeps BEFORE DELETE ON t BEGIN SELECT RAISE(IGNORE); END")
    with refuses("kept 1 rows that a change feed deletes"):
        write(place, commit, FEED, writeMode="apply", keyColumns="id")
    assert place.read().to_pylist() == [{"id": 2, "v": "old"}]


@on(*TRIGGERED)
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_where_rows_may_be_refused_the_skipped_ones_are(place: Place, mode: str) -> None:
    if place.kind.startswith("adbc") and mode == "upsert":
        pytest.skip("rows of ADBC are judged one by one only where they are inserted")
    make(place)
    refused: list[tuple[dict[str, Any], str]] = []
    key: dict[str, Any] = {"keyColumns": "id"} if mode == "upsert" else {}
    assert write(place, "task", refused=refused, writeMode=mode, **key) == 2
    assert [row["id"] for row, _ in refused] == [2]
    assert "stored 0 of 1 rows" in refused[0][1]
    assert sorted(place.read()["id"].to_pylist()) == [1, 3]


@on("postgresql")
@pytest.mark.parametrize("more", [{}, {"rowsPerSecond": "1M"}], ids=["at once", "in pieces"])
def test_rows_that_a_rule_skips_are_an_error(place: Place, more: dict[str, Any]) -> None:
    place.run(
        "CREATE TABLE t (id bigint, v text); "
        "CREATE RULE skips AS ON INSERT TO t WHERE NEW.v = 'skip' DO INSTEAD NOTHING"
    )
    with refuses("stored 2 of 3 rows"):
        write(place, "job", **more)
    assert place.read().num_rows == 0
    assert write(place, "task") == place.read().num_rows == 3  # COPY applies no rules


@on("postgresql")
@pytest.mark.parametrize("more", [{}, {"rowsPerSecond": "1M"}], ids=["at once", "in pieces"])
def test_rows_that_a_rule_stores_elsewhere_are_an_error(place: Place, more: dict[str, Any]) -> None:
    place.run(
        "CREATE TABLE t (id bigint, v text); CREATE TABLE other (LIKE t); "
        "CREATE RULE moves AS ON INSERT TO t WHERE NEW.v = 'skip' DO INSTEAD INSERT INTO other VALUES (NEW.*)"
    )
    with refuses("stored 2 of 3 rows"):
        write(place, "job", **more)
    assert place.read().num_rows == place.read("other").num_rows == 0


@on("postgresql")
def test_rows_that_a_rule_stores_in_a_part_of_the_table_count(place: Place) -> None:
    place.run(
        "CREATE TABLE t (id bigint, v text); CREATE TABLE part () INHERITS (t); "
        "CREATE RULE moves AS ON INSERT TO t WHERE NEW.v = 'skip' DO INSTEAD INSERT INTO part VALUES (NEW.*)"
    )
    assert write(place, "job") == place.read().num_rows == 3
    assert place.read("part").num_rows == 1


@on("sqlite", "adbc-sqlite")
@BOTH
@pytest.mark.parametrize("word", ["IGNORE", "REPLACE"])
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_conflict_clause_of_a_table_skips_and_replaces_nothing(
    place: Place, commit: CommitMode, word: str, mode: str
) -> None:
    place.run(
        f"CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20), w BIGINT, UNIQUE (w) ON CONFLICT {word})"
    )
    rows = ROWS.append_column("w", pa.array([7, 8, 7]))
    key: dict[str, Any] = {"keyColumns": "id"} if mode == "upsert" else {}
    with refuses("UNIQUE constraint failed"):
        write(place, commit, rows, writeMode=mode, **key)
    assert place.read().num_rows == 0


@on("sqlite", "adbc-sqlite")
@BOTH
def test_conflict_clauses_in_triggers_hold(place: Place, commit: CommitMode) -> None:
    place.run("CREATE TABLE t (id BIGINT, v VARCHAR(20))")
    place.run("CREATE TABLE seen (n BIGINT UNIQUE)")
    place.run(
        "CREATE TRIGGER notes AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO seen VALUES (NEW.id % 2); END"
    )
    assert write(place, commit) == place.read().num_rows == 3
    assert place.read("seen").num_rows == 2


@on("postgresql")
@BOTH
@pytest.mark.parametrize("more", [{}, {"rowsPerSecond": "1M"}], ids=["unlimited", "limited"])
def test_a_trigger_may_put_rows_into_tables_that_inherit(
    place: Place, commit: CommitMode, more: dict[str, Any]
) -> None:
    """Partitions of before PostgreSQL 10."""
    place.run(
        "CREATE TABLE t (id bigint, v text); CREATE TABLE part () INHERITS (t); CREATE TABLE elsewhere (LIKE t); "
        "CREATE FUNCTION route() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO part VALUES (NEW.*); INSERT INTO elsewhere VALUES (NEW.*); RETURN NULL; END $$; "
        "CREATE TRIGGER routes BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION route()"
    )
    assert write(place, commit, **more) == place.read().num_rows == 3
    place.run("ALTER TABLE part NO INHERIT t; CREATE TABLE other () INHERITS (t)")
    with refuses("stored 0 of 3 rows"):
        write(place, commit, **more)
    assert place.read("part").num_rows == 3


@on("postgresql", "adbc-postgresql")
@BOTH
@pytest.mark.parametrize("mode", ["insert", "upsert", "skipExisting"])
def test_a_trigger_may_change_keys(place: Place, commit: CommitMode, mode: str) -> None:
    place.run(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); "
        "CREATE FUNCTION moves() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.id = -NEW.id; RETURN NEW; END $$; "
        "CREATE TRIGGER moves BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION moves()"
    )
    key: dict[str, Any] = {} if mode == "insert" else {"keyColumns": "id"}
    assert write(place, commit, writeMode=mode, **key) == 3
    assert sorted(place.read()["id"].to_pylist()) == [-3, -2, -1]


@on("mysql")
def test_insert_ignore_leaves_out_keys_and_nothing_else(place: Place) -> None:
    place.run(
        "CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20) CHECK (v <> 'skip')) ENGINE=InnoDB"
    )
    place.run("INSERT INTO t VALUES (1, 'old')")
    for commit in ("job", "task"):
        with refuses("INSERT IGNORE left out rows"):
            write(place, commit, duplicates="ignore")
    kept = pa.table({"id": [1, 5], "v": ["a", "e"]})
    write(place, "job", kept, duplicates="ignore")
    assert sorted(place.read()["v"].to_pylist()) == ["e", "old"]


@on("mysql", "duckdb")
@pytest.mark.parametrize("mode", ["insert", "upsert", "skipExisting"])
@pytest.mark.parametrize("limit", [{}, {"rowsPerSecond": "1M"}], ids=["unlimited", "limited"])
def test_rows_that_are_stored_are_counted_as_such(
    place: Place, mode: str, limit: dict[str, Any]
) -> None:
    place.run("CREATE TABLE t (id BIGINT PRIMARY KEY, v VARCHAR(20))")
    more: dict[str, Any] = {
        "writeMode": mode,
        **limit,
        **({"keyColumns": "id"} if mode != "insert" else {}),
    }
    commits: tuple[CommitMode, ...] = ("job",) if place.kind == "duckdb" else ("job", "task")
    for commit in commits:
        assert write(place, commit, **more) == place.read().num_rows == 3
        if mode != "insert":
            assert write(place, commit, **more) == 3  # the same values: an UPDATE changes none
        place.run("DELETE FROM t")


def test_the_error_says_what_to_do() -> None:
    from spark_channel.connectors.sql.write.checks import check_stored

    check_stored("t", 3, 3)
    for stored in (2, 4):
        with pytest.raises(
            BatchRefusedError, match=rf"'t' stored {stored} of 3 rows.*trigger.*'maxDirtyRows'"
        ):
            check_stored("t", 3, stored)
