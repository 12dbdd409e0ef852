"""`onSchemaChange=evolve` gives a text column of the target the length that its source has."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_channel import transfer
from spark_channel.arrow_schema import TEXT_LENGTH, UNLIMITED, text_lengths
from spark_channel.connectors import WriteContext
from spark_channel.datax import load_job
from spark_channel.errors import SchemaError, TargetError
from spark_channel.transfers.options import job_options
from spark_channel.transfers.plan import open_transfer
from spark_channel.transform.select import Rename
from spark_channel.tunnel.source import StreamSource
from tests.connectors.mysql.shop import Shop
from tests.connectors.sql.places import Place, open_place
from tests.connectors.sql.write.test_job import writer_of

ROWS = pa.table({"id": pa.array([1], pa.int32()), "s": ["longer than nine letters"]})


@pytest.fixture(params=["postgresql", "mysql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        yield made


def lengths(place: Place, table: str) -> dict[str, str]:
    return text_lengths(place.reader(table).schema())


def prepare(
    place: Place, job: str, noted: Mapping[str, str], rows: pa.Table = ROWS, **options: Any
) -> None:
    writer = writer_of(place, **{"dbtable": "x", "onschemachange": "evolve", **options})
    plan = writer.prepare(WriteContext(job, commit="job", text_lengths=noted), rows.schema)
    task = writer.open(plan, 0, 0)
    try:
        task.write(rows.to_batches()[0])
        receipt = task.close()
    except BaseException:
        task.rollback()
        writer.abort(plan, None)
        raise
    writer.commit(plan, [receipt])


# --- what a reader reports


def test_a_reader_tells_the_lengths_that_its_columns_declare(place: Place) -> None:
    texts = {
        "a": ("VARCHAR(200)", "200"),
        "b": ("CHAR(7)", "7"),
        "c": ("TEXT", UNLIMITED),
        "d": ("INT", None),
    }
    if place.kind == "postgresql":
        place.run("CREATE DOMAIN name_of AS varchar(30)")
        texts |= {
            "e": ("varchar", UNLIMITED),
            "f": ("name_of", "30"),
            "g": ("varchar(5)[]", None),
            "h": ("numeric", None),
        }
    else:
        texts |= {"e": ("TINYTEXT", None), "f": ("ENUM('a')", None), "g": ("VARBINARY(5)", None)}
    columns = ", ".join(f"{name} {declared}" for name, (declared, _) in texts.items())
    place.run(f"CREATE TABLE s (id INT PRIMARY KEY, {columns})")
    expected = {name: length for name, (_, length) in texts.items() if length is not None}
    assert lengths(place, "s") == expected
    reader = place.reader("s", customSchema="a BINARY")
    assert "a" not in text_lengths(reader.schema())
    reader = place.reader("s", columns='["a", "id"]')
    assert text_lengths(reader.schema()) == {"a": "200"}
    place.run("INSERT INTO s (id, a) VALUES (1, 'x')")
    (batch,) = [batch for split in reader.split(1) for batch in reader.read(split)]
    assert text_lengths(batch.schema) == {}, "batches are as they were"
    feed = StreamSource({**place.options, "dbtable": "s", "cursorColumn": "id"}).feed
    assert text_lengths(feed.schema()) == expected


def test_a_log_of_postgresql_tells_them(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with open_place(request, "postgresql", tmp_path) as place:
        place.run(
            "CREATE TABLE s (id INT PRIMARY KEY, a VARCHAR(200)); CREATE PUBLICATION lengths FOR TABLE s"
        )
        given = {**place.options, "dbtable": "s", "slot": "lengths", "publication": "lengths"}
        assert text_lengths(StreamSource(given).schema()) == {"a": "200"}
        place.run("DROP PUBLICATION lengths")


def test_a_binary_log_tells_them(logged: Shop) -> None:
    logged.sql("CREATE TABLE s (id INT PRIMARY KEY, a VARCHAR(200))")
    given = {**logged.login, "dbtable": "s", "binlog": "true"}
    assert text_lengths(StreamSource(given).schema()) == {"a": "200"}


# --- what a writer does


def test_a_text_column_gets_the_length_of_its_source(place: Place) -> None:
    place.run("CREATE TABLE x (id INT, s VARCHAR(9) DEFAULT 'abc')")
    with pytest.raises(TargetError):
        prepare(place, "a", {})
    for mode in ("fail", "ignore"):
        with pytest.raises(TargetError):
            prepare(place, mode, {"s": "200"}, onschemachange=mode)
    assert lengths(place, "x") == {"s": "9"}
    prepare(place, "b", {"s": "200"})
    assert lengths(place, "x") == {"s": "200"}
    prepare(place, "c", {"s": "100", "other": "5"})
    assert lengths(place, "x") == {"s": "200"}, "never narrower"
    place.run("INSERT INTO x (id) VALUES (2)")
    assert sorted(place.read("x")["s"].to_pylist()) == ["abc", *2 * ROWS["s"].to_pylist()]
    prepare(place, "d", {"s": UNLIMITED})
    assert lengths(place, "x") == {"s": UNLIMITED}
    prepare(place, "e", {"s": "300"})
    assert lengths(place, "x") == {"s": UNLIMITED}


def test_a_type_that_was_chosen_counts_more_than_the_source(place: Place) -> None:
    place.run("CREATE TABLE x (id INT, s VARCHAR(9))")
    kept = {"createtablecolumntypes": "s VARCHAR(9)"}
    with pytest.raises(TargetError):
        prepare(place, "a", {"s": UNLIMITED}, **kept)
    assert lengths(place, "x") == {"s": "9"}
    prepare(place, "b", {"s": UNLIMITED}, createtablecolumntypes="s VARCHAR(60)")
    assert lengths(place, "x") == {"s": "60"}


def test_what_is_no_text_takes_no_length(place: Place) -> None:
    place.run("CREATE TABLE x (id INT, s VARCHAR(9))")
    rows = pa.table({"id": pa.array([1], pa.int32()), "s": pa.array([5], pa.int32())})
    writer = writer_of(place, dbtable="x", onschemachange="evolve")
    with pytest.raises(SchemaError, match="'s'"):
        writer.prepare(WriteContext("a", commit="job", text_lengths={"s": "200"}), rows.schema)
    assert lengths(place, "x") == {"s": "9"}


def test_a_view_in_the_way_is_told_with_the_statement(place: Place) -> None:
    if place.kind != "postgresql":
        pytest.skip("a view does not hold its columns' types")
    place.run("CREATE TABLE x (id INT, s VARCHAR(9)); CREATE VIEW seen AS SELECT s FROM x")
    with pytest.raises(
        TargetError,
        match=r"view.* TYPE varchar\(200\)\. To keep its type, set option 'createTableColumnTypes' to s VARCHAR\(9\)$",
    ):
        prepare(place, "a", {"s": "200"})


def test_a_row_that_would_be_too_long_is_told_with_the_statement(place: Place) -> None:
    if place.kind != "mysql":
        pytest.skip("has no such limit")
    place.run("CREATE TABLE x (id INT, s VARCHAR(9), t VARCHAR(16000) CHARACTER SET utf8mb4)")
    with pytest.raises(TargetError, match=r"Row size too large.* MODIFY COLUMN `s` longtext"):
        prepare(place, "a", {"s": "10000"})
    assert lengths(place, "x")["s"] == "9"
    prepare(place, "b", {"s": "16384"})
    assert lengths(place, "x")["s"] == UNLIMITED, "as long as no varchar can be"


def test_a_column_of_a_key_stays_within_what_keys_take(place: Place) -> None:
    if place.kind != "mysql":
        pytest.skip("has no such limit")
    place.run("CREATE TABLE x (id INT, s VARCHAR(30), t VARCHAR(30), PRIMARY KEY (s), KEY (t))")
    rows = ROWS.append_column("t", pa.array(["t"]))
    prepare(place, "a", {"s": UNLIMITED, "t": "2000"}, rows)
    assert lengths(place, "x") == {"s": "30", "t": "30"}
    prepare(place, "b", {"s": "700", "t": "768"}, rows.set_column(1, "s", pa.array(["other"])))
    assert lengths(place, "x") == {"s": "700", "t": "768"}


# --- from end to end


@pytest.mark.spark
@pytest.mark.newest
def test_a_transfer_takes_lengths_along(place: Place, spark: SparkSession) -> None:
    place.run(
        "CREATE TABLE s (id INT PRIMARY KEY, a VARCHAR(200)); CREATE TABLE s2 (id INT, a VARCHAR(250))"
    )
    place.run("CREATE TABLE x (id INT, a VARCHAR(9)); CREATE TABLE y (n INT, text VARCHAR(9))")
    place.run(f"INSERT INTO s VALUES (1, '{'y' * 150}')")
    reader = {**place.options, "dbtable": "s"}
    writer = {**place.options, "dbtable": "x", "onSchemaChange": "evolve"}
    transfer(spark, reader, writer)
    assert lengths(place, "x") == {"a": "200"}
    assert place.read("x")["a"].to_pylist() == ["y" * 150]
    named = [Rename(("n", "text"))]
    transfer(spark, reader, {**writer, "dbtable": "y"}, transformers=named)
    assert lengths(place, "y") == {"text": "200"}
    assert place.read("y")["text"].to_pylist() == ["y" * 150]
    for table in ("v", "w"):
        place.run(f"CREATE TABLE {table} (id INT, a VARCHAR(9))")
    transfer(spark, reader, [{**writer, "dbtable": "v"}, {**writer, "dbtable": "w"}])
    assert (lengths(place, "v"), lengths(place, "w")) == ({"a": "200"}, {"a": "200"})


def test_a_datax_job_takes_the_lengths_of_all_its_tables_along(place: Place) -> None:
    place.run(
        "CREATE TABLE s (id INT PRIMARY KEY, a VARCHAR(200)); CREATE TABLE s2 (id INT, a VARCHAR(250))"
    )
    place.run("CREATE TABLE x (n INT, text VARCHAR(9))")
    url = place.options["url"]
    login = {"username": place.options["user"], "password": place.options["password"]}
    schema = place.options.get("currentschema")
    url = f"jdbc:{url}" + (f"?currentSchema={schema}" if schema else "")
    source = {"jdbcUrl": [url], "table": ["s", "s2"]}
    job = {
        "job": {
            "setting": {"speed": {"channel": 1}},
            "content": [
                {
                    "reader": {
                        "name": f"{place.kind}reader",
                        "parameter": {**login, "column": ["id", "a"], "connection": [source]},
                    },
                    "writer": {
                        "name": f"{place.kind}writer",
                        "parameter": {
                            **login,
                            "column": ["n", "text"],
                            "connection": [{"jdbcUrl": url, "table": ["x"]}],
                        },
                    },
                }
            ],
        }
    }
    (spec, *_) = load_job(job).specs
    with ExitStack() as held:
        opened = open_transfer(job_options(spec, {}), 1, held)
        assert opened.text_lengths == {"text": "250"}
        assert text_lengths(opened.schema) == {}


@pytest.mark.spark
def test_a_frame_takes_lengths_along(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    place.run("CREATE TABLE s (id INT PRIMARY KEY, a VARCHAR(200), b TEXT)")
    place.run("CREATE TABLE x (id INT, a VARCHAR(9), b VARCHAR(9), c VARCHAR(9))")
    place.run(f"INSERT INTO s VALUES (1, '{'y' * 150}', '{'z' * 300}')")
    frame = spark.read.format("channel").options(**place.options, dbtable="s").load()
    assert frame.schema["a"].metadata == {TEXT_LENGTH: "200"}
    assert frame.schema["id"].metadata == {}
    joined = frame.join(frame.select("id"), "id").repartition(2)
    assert joined.select(joined.a.alias("z")).schema["z"].metadata == {TEXT_LENGTH: "200"}
    assert frame.selectExpr("upper(a) AS a").schema["a"].metadata == {}
    frame = frame.where("id > 0").select("b", "a", "id", frame.a.substr(1, 5).alias("c"))
    frame.write.format("channel").options(
        **place.options, dbtable="x", onSchemaChange="evolve"
    ).mode("append").save()
    assert lengths(place, "x") == {"a": "200", "b": UNLIMITED, "c": "9"}
    assert place.read("x").to_pylist() == [{"id": 1, "a": "y" * 150, "b": "z" * 300, "c": "yyyyy"}]
    frame.write.format("channel").options(path=str(tmp_path / "out"), writer="parquet").mode(
        "append"
    ).save()
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert TEXT_LENGTH.encode() not in file.read_bytes()
    assert pq.read_table(file).num_rows == 1


@pytest.mark.spark
@pytest.mark.newest
def test_a_stream_takes_lengths_along(place: Place, spark: SparkSession, tmp_path: Path) -> None:
    place.run("CREATE TABLE s (id INT PRIMARY KEY, a VARCHAR(200))")
    place.run("CREATE TABLE x (id INT PRIMARY KEY, a VARCHAR(9))")
    place.run(f"INSERT INTO s VALUES (1, '{'y' * 150}')")
    source = {
        **place.options,
        "dbtable": "s",
        "cursorColumn": "id",
        "lateSeconds": "0",
        "tunnelType": "stream",
        "startingOffsets": "earliest",
    }
    target = {**place.options, "dbtable": "x", "onSchemaChange": "evolve"}
    query = (
        spark.readStream.format("channel")
        .options(**source)
        .load()
        .select("a", "id")
        .writeStream.format("channel")
        .options(**target, checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert lengths(place, "x") == {"a": "200"}
    assert place.read("x")["a"].to_pylist() == ["y" * 150]
