"""The connector through two drivers: SQLite's, on a file, and PostgreSQL's, on a server; each by its name alone."""

import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import Reader, WriteContext, Writer, load_reader, load_writer
from spark_channel.errors import BatchRefusedError, OptionError, SourceError, TargetError
from spark_channel.options import CommitMode
from spark_channel.testing import writer_conformance
from tests.connectors.sql.documented import PLANES
from tests.connectors.sql.odd_names import hold_to_names
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.real_server("ADBC's drivers of PostgreSQL", "adbc")

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c'; drop table t; --"]})


@dataclass
class Base:
    options: dict[str, Any]
    sql: Callable[[str], object]
    schema: str = ""

    def name(self, table: str) -> str:
        return f"{self.schema}.{table}" if self.schema else table

    def reader(self, table: str | None = "t", **options: Any) -> Reader:
        named = {} if table is None else {"dbtable": self.name(table)}
        return load_reader({"reader": "adbc", **self.options, **named, **_lowered(options)})[0]

    def writer(self, table: str = "t", **options: Any) -> Writer:
        return load_writer(
            {"writer": "adbc", **self.options, "dbtable": self.name(table), **_lowered(options)}
        )[0]

    def read(self, table: str | None = "t", *, advice: int = 1, **options: Any) -> pa.Table:
        reader = self.reader(table, **options)
        schema = reader.schema()
        return pa.Table.from_batches(
            [b for s in reader.split(advice) for b in reader.read(s)], schema
        )

    def write(
        self,
        table: pa.Table,
        *,
        overwrite: bool = False,
        commit: CommitMode | None = None,
        **options: Any,
    ) -> None:
        writer = self.writer(**options)
        plan = writer.prepare(
            WriteContext(job=uuid.uuid4().hex, overwrite=overwrite, commit=commit), table.schema
        )
        try:
            task = writer.open(plan, 0, 0)
            try:
                for batch in table.to_batches():
                    task.write(batch)
                receipt = task.close()
            except BaseException:
                task.rollback()
                raise
            writer.commit(plan, [receipt])
        except BaseException:
            writer.abort(plan, None)
            raise

    def staged(self) -> list[str]:
        from spark_channel.connectors.adbc.session import AdbcSession

        options: Any = self.reader().options
        with AdbcSession(options, SourceError) as session:
            return session.tables(self.schema or None, "spark_channel_stage_")


def _lowered(options: dict[str, Any]) -> dict[str, Any]:
    return {name.lower(): value for name, value in options.items()}


@pytest.fixture(params=["sqlite", "postgresql"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Base]:
    if request.param == "sqlite":
        import sqlite3

        path = tmp_path / "shop.sqlite"

        def run(statement: str) -> object:
            with sqlite3.connect(path) as connection:
                found = connection.execute(statement).fetchall()
            connection.close()
            return found

        yield Base({"driver": "sqlite", "uri": f"file:{path}"}, run)
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    schema = f"s{uuid.uuid4().hex[:10]}"
    server.psql(f"CREATE SCHEMA {schema}")
    uri = server.url.replace("//", f"//{server.user}:{server.password}@")
    yield Base(
        {"driver": "postgresql", "uri": uri},
        lambda statement: server.psql(f"SET search_path = {schema}; {statement}"),
        schema,
    )
    server.psql(f"SET lock_timeout = '5s'; DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize("commit", ["job", "task"])
def test_statements_of_a_session_run_where_rows_are_written(base: Base, commit: CommitMode) -> None:
    """Each database has one that shows, and that holds in every later transaction."""
    base.sql("CREATE TABLE known (id BIGINT PRIMARY KEY)")
    if base.schema:
        base.sql("CREATE TABLE t (id BIGINT, name TEXT)")
        base.sql(
            "ALTER TABLE t ADD CHECK (current_setting('app.tenant', true) IS DISTINCT FROM '7')"
        )
        session, message = "SET app.tenant = 7", "check constraint"
    else:
        base.sql("CREATE TABLE t (id BIGINT REFERENCES known, name TEXT)")
        session, message = "PRAGMA foreign_keys = ON", "FOREIGN KEY constraint failed"
    with pytest.raises(TargetError, match=message):
        base.write(ROWS, commit=commit, sessionInitStatement=session)
    base.write(ROWS, commit=commit)
    assert base.read().num_rows == 3
    with pytest.raises(OptionError, match="may not begin a transaction"):
        base.write(ROWS, commit=commit, sessionInitStatement="BEGIN")


@pytest.mark.parametrize(
    ("base", "there", "commits"),
    [
        ("sqlite", False, ["job", "task"]),
        ("postgresql", True, ["job"]),  # a connection of this driver costs the most of all
        *(
            pytest.param(*each, marks=pytest.mark.soak)
            for each in (("sqlite", True, ["job", "task"]), ("postgresql", True, ["task"]))
        ),
    ],
    indirect=["base"],
)
def test_the_writer_keeps_its_contract(base: Base, there: bool, commits: list[CommitMode]) -> None:
    if there:
        base.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")

    def read_back() -> pa.Table | None:
        if (
            base.schema
        ):  # by its own client, which costs a tenth of three connections of this driver
            lines = [
                line.split("|") for line in str(base.sql("SELECT id, name FROM t")).splitlines()
            ]
            ids = pa.array([int(number) for number, _ in lines], pa.int64())
            return pa.table({"id": ids, "name": pa.array([name for _, name in lines], pa.string())})
        try:
            return base.read()
        except SourceError as error:
            if "t" in str(error):
                return None
            raise

    writer_conformance(base.writer, read_back=read_back, leftovers=base.staged, commits=commits)


def test_overwrite_pre_and_post_sql(base: Base) -> None:
    base.write(ROWS)
    place = base.name("t")
    base.write(
        ROWS.slice(1),
        overwrite=True,
        preSql=f"DELETE FROM {place} WHERE id = 1",
        postSql=f"UPDATE {place} SET name = 'b' WHERE id = 2",
    )
    assert sorted(base.read()["name"].to_pylist()) == sorted(["b", "c'; drop table t; --"])
    with pytest.raises(TargetError, match="Nothing of this job is in table"):
        base.write(ROWS, commit="job", postSql="UPDATE nowhere SET a = 1")
    assert base.read().num_rows == 2
    assert base.staged() == []


def test_refused_batches_leave_the_writer_usable(base: Base) -> None:
    base.sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    writer = base.writer(maxDirtyRows="9")
    plan = writer.prepare(WriteContext(job="dirty"), ROWS.schema)
    task = writer.open(plan, 0, 0)
    task.tolerant = True
    if base.options["driver"] == "postgresql":
        # Its driver runs nothing in a transaction that has failed.
        one = pa.RecordBatch.from_pydict({"id": [1], "name": ["x"]})
        task.write(one)
        with pytest.raises(TargetError, match="own connector"):
            task.write(one)
        task.rollback()
        return
    first, again, other = (
        pa.RecordBatch.from_pydict({"id": [id_], "name": ["x"]}) for id_ in (1, 1, 2)
    )
    task.write(first)
    with pytest.raises(BatchRefusedError):
        task.write(again)
    task.write(other)
    writer.commit(plan, [task.close()])
    assert sorted(base.read()["id"].to_pylist()) == [1, 2]


def test_secrets_are_shown_nowhere(base: Base) -> None:
    options = {
        "reader": "adbc",
        "driver": base.options["driver"],
        "dbtable": "t",
        "uri": "postgresql://u:s3cret@127.0.0.1:1/d"
        if base.schema
        else "file:/nowhere/s3cret/x?mode=ro",
    }
    reader = load_reader(options)[0]
    with pytest.raises(SourceError) as caught:
        reader.schema()
    assert "s3cret" not in str(caught.value) + repr(reader.options)
    with pytest.raises(OptionError) as bad:
        load_reader({**options, "driveroptions": '["s3cret"]'})
    assert "s3cret" not in str(bad.value)


def test_a_login_is_kept_out_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "shop.sqlite"
    monkeypatch.setenv("SHOP_URI", f"file:{path}")
    kept = tmp_path / "options.json"
    kept.write_text('{"uri": "file:' + str(path) + '"}')
    for named in ({"uri": "${env:SHOP_URI}"}, {"driveroptions": "${file:" + str(kept) + "}"}):
        base = Base({"driver": "sqlite", **named}, lambda _: None)
        base.write(ROWS, overwrite=True)
        assert base.read().num_rows == 3
    with pytest.raises(OptionError, match="SHOP_NOWHERE"):
        base.reader(uri="${env:SHOP_NOWHERE}")


def test_unknown_drivers_and_options() -> None:
    with pytest.raises(OptionError, match="takes its own 'uri'"):
        load_reader({"reader": "adbc", "driver": "sqlite", "url": "sqlite:x", "dbtable": "t"})


Typed = tuple[str, pa.Array, pa.DataType, pa.DataType, list[object]]
TYPES: dict[str, list[Typed]] = {
    "int64": [("i", pa.array([-(2**63), None, 2**63 - 1]), pa.int64(), pa.int64(), [])],
    "float64": [("d", pa.array([0.1, None, 1e308]), pa.float64(), pa.float64(), [])],
    "string": [("s", pa.array(["", None, f"{PLANES}'\""]), pa.string(), pa.string(), [])],
    "binary": [("b", pa.array([b"", None, b"\x00\xff"]), pa.binary(), pa.binary(), [])],
    "bool": [("t", pa.array([True, None, False]), pa.int64(), pa.bool_(), [1, None, 0])],
    "date32, timestamp[us]": [
        (
            "day",
            pa.array([19_000, None, 0], pa.date32()),
            pa.string(),
            pa.date32(),
            ["2022-01-08", None, "1970-01-01"],
        ),
        (
            "at",
            pa.array([1, None, 2**50], pa.timestamp("us")),
            pa.string(),
            pa.timestamp("us"),
            ["1970-01-01T00:00:00.000001", None, "2005-09-05T05:58:26.842624"],
        ),
    ],
}
"""By kind: name, values, what each driver gives, and SQLite's own values where they are others."""


def test_types_are_those_of_the_driver(base: Base) -> None:
    cases = [case for each in TYPES.values() for case in each]
    base.write(pa.table({name: values for name, values, *_ in cases}))
    back = base.read()
    for name, values, sqlite, postgresql, shown in cases:
        assert back.schema.field(name).type == (postgresql if base.schema else sqlite), name
        assert back[name].to_pylist() == (
            shown if shown and not base.schema else values.to_pylist()
        ), name
    stored = base.sql(
        f"SELECT encode(convert_to(s, 'UTF8'), 'hex') FROM {base.name('t')} WHERE i > 0"
        if base.schema
        else "SELECT lower(hex(CAST(s AS BLOB))) FROM t WHERE i > 0"
    )
    assert f"{PLANES}'\"".encode().hex() == (stored if base.schema else stored[0][0])  # type: ignore[index] # there is one


def test_a_key_of_floats_with_what_is_no_number(base: Base) -> None:
    """NaN is the largest number to one database and NULL to another: no row of either is lost."""
    base.sql(f"CREATE TABLE {base.name('f')} (k double precision, n integer)")
    nan = "'NaN'" if base.schema else "NULL"
    endless = "float8 'Infinity'" if base.schema else "9e999"
    values = [
        f"({k}, {n})"
        for n, k in enumerate(
            [nan] * 50 + [endless] * 20 + [f"-1 * {endless}"] * 20 + ["1.5", "2.5", "3.5"]
        )
    ]
    base.sql(f"INSERT INTO {base.name('f')} VALUES {', '.join(values)}")
    found = base.read("f", advice=8, partitionColumn="k")
    assert sorted(found["n"].to_pylist()) == list(range(93))


def test_odd_names_are_names_everywhere(base: Base) -> None:
    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def place(table: str) -> str:
        return base.name(quoted(table)) if base.schema else table

    def write(
        rows: pa.Table, dbtable: str, txn: tuple[str, int] | None = None, **options: Any
    ) -> None:
        named: dict[str, Any] = (
            {} if txn is None else {"txnAppId": txn[0], "txnVersion": str(txn[1])}
        )
        base.write(rows, dbtable=place(dbtable), **named, **options)

    base.sql("CREATE TABLE y (a INTEGER)")
    base.sql("INSERT INTO y VALUES (1)")
    hold_to_names(
        lambda table, **options: base.reader("", **{**options, "dbtable": place(table)}),
        write,
        quoted,
        streams=False,
    )
    assert base.read("y").to_pylist() == [{"a": 1}]
    assert base.staged() == []


@pytest.mark.parametrize("base", ["postgresql"], indirect=True)
def test_a_name_without_a_schema_is_of_the_current_one(base: Base) -> None:
    """Tables, ledgers and staging of other schemas are none of its business."""
    own = f"{base.schema}_own"
    base.write(ROWS.slice(1))
    base.sql(f"CREATE TABLE {base.schema}.spark_channel_stage_of_another (id BIGINT)")
    base.sql(f"CREATE SCHEMA {own}")
    try:
        options = {**base.options, "uri": base.options["uri"] + f"?options=-csearch_path%3D{own}"}
        inside = Base(options, base.sql)
        for overwrite in (False, True):
            inside.write(ROWS, overwrite=overwrite, commit="job")
            assert inside.read().num_rows == 3
        assert inside.staged() == []
        assert base.read().num_rows == 2
        assert base.staged() == ["spark_channel_stage_of_another"]
    finally:
        base.sql(f"DROP SCHEMA {own} CASCADE")


@pytest.mark.parametrize("hides", ["false", "true"])
def test_an_error_quotes_no_value_where_it_may_not(
    postgres_server: PostgresServer, hides: str
) -> None:
    login = f"{postgres_server.user}:{postgres_server.password}@127.0.0.1:{postgres_server.port}"
    query = "SELECT v::int AS n FROM (SELECT 'card-' || i AS v FROM generate_series(1, 3) i) t"
    given = {"driver": "postgresql", "uri": f"postgresql://{login}/postgres", "query": query}
    found, _ = load_reader({"reader": "adbc", **given, "hideValues": hides})
    with pytest.raises(SourceError) as caught:
        [list(found.read(split)) for split in found.split(1)]
    said = "".join(traceback.format_exception(caught.value))
    assert ("card-1" in said) == (hides == "false"), said
    assert ("may quote a value, and are hidden" in said) == (hides == "true")
