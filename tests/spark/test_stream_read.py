"""`spark.readStream.format("channel")`."""

import json
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_channel.tunnel import Tunnel
from tests.tunnel.children import ADMISSION

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

needs_admission = pytest.mark.skipif(not ADMISSION, reason="admission control came with Spark 4.2")


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def fill(path: Path, start: int, end: int) -> None:
    run(
        path,
        f"WITH RECURSIVE n(v) AS (SELECT {start} UNION ALL SELECT v + 1 FROM n WHERE v < {end}) "
        "INSERT INTO orders SELECT v, 'item ' || v FROM n",
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    run(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    fill(path, 1, 500)
    return path


class Sink:
    """Collects batches by id; the newest run of an id counts, as in any idempotent sink."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = [row.id for row in frame.select("id").collect()]

    @property
    def ids(self) -> list[int]:
        return sorted(each for batch in self.batches.values() for each in batch)


def orders(spark: SparkSession, shop: Path, **options: Any) -> DataFrame:
    given = {"dbtable": "orders", "cursorColumn": "id", **options}
    return spark.readStream.format("channel").options(**given).load(str(shop))


def all_now(frame: DataFrame, sink: Sink, checkpoint: Path) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def stream(spark: SparkSession, shop: Path, **options: Any) -> DataFrame:
    """A stream from the first row on: it works in every Spark version."""
    start = {"tunnelType": "stream", "startingOffsets": "earliest"}
    return orders(spark, shop, **start, **options)


def test_a_table_is_read_from_its_first_row_and_on(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    all_now(stream(spark, shop), sink, checkpoint)
    assert sink.ids == list(range(1, 501))
    all_now(stream(spark, shop), sink, checkpoint)
    assert sink.ids == list(range(1, 501))
    fill(shop, 501, 510)
    all_now(stream(spark, shop), sink, checkpoint)
    assert sink.ids == list(range(1, 511))


@needs_admission
def test_what_is_there_comes_before_what_came(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    all_now(orders(spark, shop), sink, checkpoint)
    assert sink.ids == list(range(1, 501))
    fill(shop, 501, 520)
    all_now(orders(spark, shop), sink, checkpoint)
    assert sink.ids == list(range(1, 521))


@needs_admission
def test_batches_keep_to_max_rows_per_trigger(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    sink = Sink()
    all_now(stream(spark, shop, maxRowsPerTrigger=120), sink, tmp_path / "checkpoint")
    assert [len(batch) for _, batch in sorted(sink.batches.items())] == [120, 120, 120, 120, 20]


older = pytest.mark.skipif(ADMISSION, reason="this Spark has admission control")


@older
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"tunnelType": "stream", "startingOffsets": "earliest", "maxRowsPerTrigger": "120"},
            r"'maxRowsPerTrigger' and 'maxBytesPerTrigger' need Spark 4\.2, .* or option 'tunnel'",
        ),
        ({"tunnelType": "base"}, r"tunnelType base needs Spark 4\.2, or option 'tunnel'"),
    ],
)
def test_an_older_spark_refuses_what_it_cannot_do(
    spark: SparkSession, shop: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(StreamingQueryException, match=message):
        all_now(orders(spark, shop, **options), Sink(), tmp_path / "checkpoint")


def test_with_a_tunnel_every_spark_brings_batches_of_a_size(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    store, sink, whole = str(tmp_path / "tunnels.db"), Sink(), threading.Event()

    def collect(frame: DataFrame, number: int) -> None:
        sink(frame, number)
        if len(sink.ids) >= 700:
            whole.set()

    Tunnel(
        "orders", {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}, store=store
    ).create(channels=3)
    fill(shop, 501, 700)
    query = (
        orders(spark, shop, tunnel="orders", tunnelStore=store, maxRowsPerTrigger=170)
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        assert whole.wait(120), query.exception()
    finally:
        query.stop()
    assert sink.ids == list(range(1, 701))
    sizes = [len(batch) for _, batch in sorted(sink.batches.items()) if batch]
    assert sorted(sizes[:3]) == [166, 167, 167], "a split of what was there comes whole"
    assert sizes[3:] == [170, 30]


@needs_admission
def test_files_that_arrive_are_read(spark: SparkSession, tmp_path: Path) -> None:
    folder, sink, checkpoint = tmp_path / "in", Sink(), tmp_path / "checkpoint"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), folder / "a.parquet")

    def frame() -> DataFrame:
        return spark.readStream.format("channel").option("reader", "parquet").load(str(folder))

    all_now(frame(), sink, checkpoint)
    pq.write_table(pa.table({"id": [3]}), folder / "b.parquet")
    all_now(frame(), sink, checkpoint)
    all_now(frame(), sink, checkpoint)
    assert sink.ids == [1, 2, 3]


@needs_admission
def test_a_batch_that_failed_is_read_again_as_it_was(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    """The offsets were logged before the batch failed; rows that came since are not in it."""
    sink, checkpoint = Sink(), tmp_path / "checkpoint"
    seen: list[list[int]] = []

    def breaks(frame: DataFrame, number: int) -> None:
        seen.append(sorted(row.id for row in frame.collect()))
        raise RuntimeError("no room")

    query = (
        stream(spark, shop, maxRowsPerTrigger=100)
        .writeStream.foreachBatch(breaks)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="no room"):
        query.awaitTermination(120)
    fill(shop, 501, 600)
    all_now(stream(spark, shop, maxRowsPerTrigger=100), sink, checkpoint)
    assert sorted(sink.batches[0]) == seen[0]
    assert sink.ids == list(range(1, 601))


def test_a_query_on_a_tunnel_goes_on_where_it_stood(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    """An older Spark's AvailableNow is one batch: what was there, and at the next run what came."""
    store, sink, checkpoint = str(tmp_path / "tunnels.db"), Sink(), tmp_path / "checkpoint"
    Tunnel(
        "orders", {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}, store=store
    ).create(channels=3)
    given = {"tunnel": "orders", "tunnelStore": store}
    fill(shop, 501, 520)
    all_now(orders(spark, shop, **given), sink, checkpoint)
    if not ADMISSION:
        assert sink.ids == list(range(1, 501))
        all_now(orders(spark, shop, **given), sink, checkpoint)
    assert sink.ids == list(range(1, 521))
    fill(shop, 521, 530)
    all_now(orders(spark, shop, **given), sink, checkpoint)
    assert sink.ids == list(range(1, 531))


def failure(frame: DataFrame, checkpoint: Path) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        all_now(frame, Sink(), checkpoint)
    return str(caught.value)


def test_a_changed_schema_is_an_error_that_names_the_column(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    all_now(stream(spark, shop), Sink(), tmp_path / "checkpoint")
    run(shop, "ALTER TABLE orders ADD COLUMN note TEXT")
    assert "note" in failure(stream(spark, shop), tmp_path / "checkpoint")


def test_a_checkpoint_of_another_source_is_refused(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    all_now(stream(spark, shop), Sink(), tmp_path / "checkpoint")
    run(
        shop,
        "CREATE TABLE items (id INTEGER PRIMARY KEY, item TEXT)",
        "INSERT INTO items VALUES (1, 'a')",
    )
    other = stream(spark, shop, dbtable="items")
    assert "the checkpoint directory is of sqlite" in failure(other, tmp_path / "checkpoint")


@needs_admission
def test_a_checkpoint_of_another_tunnel_is_refused(
    spark: SparkSession, shop: Path, tmp_path: Path
) -> None:
    store = str(tmp_path / "tunnels.db")
    given = {"path": str(shop), "dbtable": "orders", "cursorColumn": "id"}
    for name in ("one", "two"):
        Tunnel(name, given, store=store).create()
    frame = {name: orders(spark, shop, tunnel=name, tunnelStore=store) for name in ("one", "two")}
    all_now(frame["one"], Sink(), tmp_path / "checkpoint")
    assert "is of a query on tunnel 'one', and this one is on tunnel 'two'" in failure(
        frame["two"], tmp_path / "checkpoint"
    )
    Tunnel("one", given, store=store).reset()
    assert "before it was reset" in failure(frame["one"], tmp_path / "checkpoint")


def change_offset(checkpoint: Path, change: Any) -> None:
    """Rewrite the last offset of Spark's checkpoint, and forget that its batch was done."""
    last = max((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    lines = last.read_text().splitlines()
    offset = json.loads(lines[2])
    lines[2] = json.dumps(change(offset))
    last.write_text("\n".join(lines))
    (checkpoint / "offsets" / f".{last.name}.crc").unlink(missing_ok=True)


def with_token(token: Any) -> Any:
    def change(offset: dict[str, Any]) -> dict[str, Any]:
        offset["channels"]["stream-0"]["to"] = token
        return offset

    return change


@needs_admission
def test_an_offset_from_the_future_is_told(spark: SparkSession, shop: Path, tmp_path: Path) -> None:
    all_now(stream(spark, shop), Sink(), tmp_path / "checkpoint")
    change_offset(tmp_path / "checkpoint", with_token({"cursor": 10_000}))
    fill(shop, 501, 510)
    assert "is at id = 10000, and the highest value in the table is 510" in failure(
        stream(spark, shop), tmp_path / "checkpoint"
    )


def test_a_bad_option_of_a_stream_is_named(spark: SparkSession, shop: Path) -> None:
    with pytest.raises(PySparkException, match=r"'heartbeatInterval' got '1'"):
        orders(spark, shop, heartbeatInterval="1")
