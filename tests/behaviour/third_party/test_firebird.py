"""The third party's connector: found by its entry point and held to the contract."""

import datetime
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import (
    Receipt,
    WriteContext,
    Writer,
    find_connector,
    load_reader,
    load_writer,
)
from spark_channel.connectors.base.contract import bisect_refused
from spark_channel.errors import OptionError, SchemaError, SourceError, TargetError
from spark_channel.testing import reader_conformance, writer_conformance
from tests.behaviour.third_party import install
from tests.servers.firebird import FirebirdServer


@dataclass
class Shop:
    server: FirebirdServer
    name: str

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.sql(statement, database=self.name)

    def read(self, table: str = "t", **options: Any) -> pa.Table:
        reader = load_reader({**self.server.login(self.name), "dbtable": table, **options})[0]
        schema = reader.schema()
        return pa.Table.from_batches([b for s in reader.split(2) for b in reader.read(s)], schema)

    def writer(self, table: str = "t", **options: Any) -> Writer:
        return load_writer({**self.server.login(self.name), "dbtable": table, **options})[0]

    def write(
        self, rows: pa.Table, context: WriteContext | None = None, **options: Any
    ) -> list[Receipt]:
        writer = self.writer(**options)
        context = context or WriteContext(uuid.uuid4().hex)
        plan = writer.prepare(context, rows.schema)
        receipts: list[Receipt] = []
        try:
            for number, batch in enumerate(rows.to_batches()):
                attempt = writer.open(plan, number, number + 1)
                try:
                    attempt.write(batch)
                    receipts.append(attempt.close())
                except BaseException:
                    attempt.rollback()
                    raise
            writer.commit(plan, receipts)
        except BaseException:
            writer.abort(plan, None)
            raise
        return receipts

    def tables(self) -> list[str]:
        return [name for (name,) in self.sql("SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS")]


@pytest.fixture
def shop(firebird_server: FirebirdServer) -> Iterator[Shop]:
    install()
    name = f"s{uuid.uuid4().hex[:12]}"
    firebird_server.create_database(name)
    yield Shop(firebird_server, name)
    firebird_server.drop_database(name)


def test_it_is_found_by_its_entry_point() -> None:
    install()
    for url in ("firebird://h/shop", "jdbc:firebirdsql://h:3051//data/shop.fdb"):
        assert find_connector({"url": url}, "reader").name == "firebird"
    reader: Any = load_reader({"url": "jdbc:firebirdsql://h:3051//data/shop.fdb", "dbtable": "t"})[
        0
    ]
    assert reader.options.place == "h/3051:/data/shop.fdb"
    with pytest.raises(OptionError, match="names no host and database"):
        load_reader({"url": "firebird://h", "dbtable": "t"})


@pytest.mark.parametrize("mode", ["job", pytest.param("task", marks=pytest.mark.soak)])
def test_the_writer_keeps_its_contract(shop: Shop, mode: Any) -> None:
    def read_back() -> pa.Table | None:
        return shop.read() if "T" in shop.tables() else None

    def leftovers() -> list[str]:
        return [name for name in shop.tables() if name.startswith("SPARK_CHANNEL_STAGE")]

    writer_conformance(shop.writer, read_back=read_back, commits=[mode], leftovers=leftovers)
    assert shop.server.connections(shop.name) == 0


ALL = pa.table(
    {
        "id": pa.array([1, 2], pa.int64()),
        "flag": pa.array([True, None]),
        "small": pa.array([-(2**15), None], pa.int16()),
        "whole": pa.array([2**31 - 1, None], pa.int32()),
        "single": pa.array([1.5, None], pa.float32()),
        "real": pa.array([0.1, -1.7976931348623157e308]),
        "price": pa.array([Decimal("1234567890123456.78"), None], pa.decimal128(18, 2)),
        "day": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        "time": pa.array([datetime.time(23, 59, 59, 999900), None], pa.time64("us")),
        "moment": pa.array([datetime.datetime(2024, 1, 1, 1, 2, 3, 400), None], pa.timestamp("us")),
        "text": pa.array(["\u00e9\u4e16 'x'\0", "y" * 100_000]),
        "bytes": pa.array([b"\0\xff", b""]),
    }
)


@pytest.mark.parametrize("mode", ["job", "task"])
def test_every_type_comes_back_as_it_went(shop: Shop, mode: Any) -> None:
    shop.write(ALL, WriteContext("types", commit=mode))
    assert shop.read().sort_by("id").equals(ALL)
    reader_conformance(
        lambda: load_reader({**shop.server.login(shop.name), "dbtable": "t"})[0], expected=ALL
    )


def test_what_does_not_fit_is_refused(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, name VARCHAR(3), seen TIMESTAMP)")
    for rows, message in (
        ({"id": pa.array([1], pa.int64())}, "cannot hold it exactly"),
        ({"id": pa.array([1], pa.int32()), "nope": ["x"]}, "is not in table 't'"),
        ({"name": ["x"]}, "needs column 'id'"),
    ):
        with pytest.raises(SchemaError, match=message):
            shop.write(pa.table(rows))
    for rows, message in (
        ({"id": pa.array([1], pa.int32()), "name": ["long"]}, "string right truncation"),
        (
            {"id": pa.array([1], pa.int32()), "seen": [datetime.datetime(2024, 1, 1, 0, 0, 0, 50)]},
            "multiples of 100 microseconds",
        ),
        ({"id": pa.array([1, 1], pa.int32())}, "PRIMARY or UNIQUE KEY"),
    ):
        for mode in ("job", "task"):
            with pytest.raises(TargetError, match=message):
                shop.write(pa.table(rows), WriteContext(uuid.uuid4().hex, commit=mode))
    assert shop.read().num_rows == 0
    with pytest.raises(SchemaError, match="Firebird has no such type"):
        shop.write(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))}), dbtable="u")
    assert not [name for name in shop.tables() if name.startswith("SPARK_CHANNEL_STAGE")]


@pytest.mark.parametrize("mode", ["job", "task"])
def test_rows_are_told_apart_by_their_key(shop: Shop, mode: Any) -> None:
    def write(how: str, **columns: Any) -> None:
        rows = pa.table({"k": columns.pop("k"), **columns})
        shop.write(rows, WriteContext(uuid.uuid4().hex, commit=mode), writemode=how, keycolumns="k")

    write("upsert", k=["a", "b"], v=[1, 2])
    write("upsert", k=["b", "c"], v=[20, 30])
    write("skipExisting", k=["c", "d"], v=[0, 40])
    assert sorted(zip(*shop.read().to_pydict().values(), strict=True)) == [
        ("a", 1),
        ("b", 20),
        ("c", 30),
        ("d", 40),
    ]
    write(
        "apply",
        k=["a", "b", "e", "e"],
        v=[0, 5, 6, 7],
        _op=["delete", "update", "insert", "update"],
    )
    assert sorted(zip(*shop.read().to_pydict().values(), strict=True)) == [
        ("b", 5),
        ("c", 30),
        ("d", 40),
        ("e", 7),
    ]
    for rows, message in (
        ({"k": ["x", "x"], "v": [1, 2]}, "2 rows have the key"),
        ({"k": pa.array([None], pa.string()), "v": [1]}, "NULL"),
    ):
        with pytest.raises(TargetError, match=message):
            write("upsert", **rows)
    assert shop.read().num_rows == 4


def test_only_the_key_of_a_new_table_has_texts_of_bounded_length(shop: Shop) -> None:
    rows = pa.table({"k": ["a", "b"], "text": ["x" * 5000, None]})
    shop.write(rows, writemode="upsert", keycolumns="k")
    assert shop.read().sort_by("k").equals(rows)


@pytest.mark.parametrize("how", ["insert", "upsert"])
def test_refused_rows_are_told_one_by_one(shop: Shop, how: str) -> None:
    shop.sql("CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(3) NOT NULL)")
    rows = pa.table(
        {"id": range(100), "name": [{7: "long", 93: None}.get(n, "x") for n in range(100)]}
    )
    writer = shop.writer(writemode=how)
    plan = writer.prepare(WriteContext("dirty", commit="task"), rows.schema)
    attempt = writer.open(plan, 0, 1)
    attempt.tolerant = True
    refused = []
    bisect_refused(
        rows.combine_chunks().to_batches()[0],
        attempt.write,
        lambda row, why: refused.append((row["id"][0].as_py(), why)),
    )
    receipt = attempt.close()
    writer.commit(plan, [receipt])
    assert [number for number, _ in refused] == [7, 93]
    assert "truncation" in refused[0][1]
    assert receipt.rows == shop.read().num_rows == 98


# firebird-driver 1.10: a statement that another thread's garbage collector frees while its connection closes.
@pytest.mark.filterwarnings("ignore:.*__stmt_deleted.*:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mode", ["job", "task"])
def test_tasks_end_side_by_side(shop: Shop, mode: Any) -> None:
    """The lock on the claim is waited for, and does not fail the write."""
    writer, rows = shop.writer(), pa.table({"id": range(500)})
    plan = writer.prepare(WriteContext("many", commit=mode), rows.schema)

    def run(task: int) -> Receipt:
        attempt = shop.writer().open(plan, task, task + 1)
        attempt.write(rows.to_batches()[0])
        return attempt.close()

    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(run, range(16)))
    writer.commit(plan, receipts)
    assert shop.read().num_rows == 16 * 500


def test_scripts_run_in_the_transaction(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id BIGINT)")
    shop.sql("CREATE TABLE log (n BIGINT)")
    rows = pa.table({"id": [1, 2]})
    with pytest.raises(TargetError, match="NOPE"):
        shop.write(
            rows,
            WriteContext("one", commit="job"),
            presql="INSERT INTO log VALUES (1)",
            postsql="DELETE FROM nope",
        )
    assert (shop.read().num_rows, shop.read("log").num_rows) == (0, 0)
    shop.write(
        rows, WriteContext("two", overwrite=True), presql="INSERT INTO log SELECT COUNT(*) FROM t"
    )
    assert (shop.read().num_rows, shop.read("log")["n"].to_pylist()) == (2, [0])
    with pytest.raises(OptionError, match="truncate"):
        shop.write(rows, WriteContext("three", overwrite=True), truncate="false")


def test_names_are_those_that_are_not_quoted(shop: Shop) -> None:
    shop.sql('CREATE TABLE t (id BIGINT, "id" BIGINT, "My Id" BIGINT)')
    assert shop.read().schema.names == ["id", "ID", "My Id"]
    shop.sql("INSERT INTO t VALUES (1, 2, 3)")
    assert shop.read(where='"ID" = 2').to_pylist() == [{"id": 1, "ID": 2, "My Id": 3}]
    shop.write(pa.table({"id": [4], "my id": [5]}))
    assert shop.read(columns='id,"My Id"', where="id = 4").to_pylist() == [{"id": 4, "My Id": 5}]
    with pytest.raises(SourceError, match="table 'x' does not exist"):
        shop.read("x")
