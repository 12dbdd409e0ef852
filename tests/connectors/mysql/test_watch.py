"""`tunnel describe` and a stream's report on a table that is followed by the binary log."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.progress import TransferReport
from spark_channel.tunnel import Delivery, Tunnel
from tests.behaviour.reports.test_stream_progress import Heard, heard
from tests.cli.test_tunnel import call
from tests.connectors.mysql.shop import Shop
from tests.tunnel.children import ADMISSION

__all__ = ["heard"]


def filled(shop: Shop, count: int) -> None:
    shop.sql(
        "CREATE TABLE source (id BIGINT PRIMARY KEY, item VARCHAR(40));"
        f"INSERT INTO source SELECT seq, 'old' FROM seq_1_to_{count}; ANALYZE TABLE source"
    )


def test_a_tunnel_tells_chunks_changes_bytes_and_seconds(
    logged: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    filled(logged, 1000)
    options = {**logged.login, "dbtable": "source", "binlog": "true", "maxRowsPerTrigger": "100"}
    store = str(tmp_path / "tunnels.db")
    tunnel = Tunnel("copy", options, store=store)
    tunnel.create()

    def shown(*more: str) -> str:
        given = [f"-o{key}={value}" for key, value in options.items()]
        found = call("describe", "copy", *given, "--store", store, *more)
        assert found.exit_code == 0, found.output
        return found.output

    def channel() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(shown("--output", "json"))["channels"][0]
        return found

    begun = channel()["lag"]
    assert 900 <= begun["rows"] <= 1100, "about so many existing rows"
    assert (begun["base"]["rows_read"], begun["base"]["chunks_read"], begun["base"]["chunks"]) == (
        0,
        0,
        None,
    )

    def take(delivery: Delivery) -> None:
        list(delivery.batches)
        if delivery.sequence == 2:
            tunnel.stop()

    tunnel.consume(take, threads=1)
    logged.sql("UPDATE source SET item = 'new' WHERE id <= 20")
    found = channel()
    lag, base = found["lag"], found["lag"]["base"]
    assert base["chunks_read"] >= 3
    assert base["rows_read"] == 100 * base["chunks_read"]
    assert base["chunks_read"] < base["chunks"] <= 15
    assert lag["rows"] == base["rows"] - base["rows_read"] + 20
    assert lag["bytes"] > 20 * 10
    assert 0 <= lag["seconds"] < 60
    assert lag["wal_kept_bytes"] is None, "no slot"
    assert found["in_flight"] is None, "no client"
    assert "existing rows are read" in shown()
    tunnel.consume(lambda delivery: list(delivery.batches), threads=1, drained=True)
    lag = channel()["lag"]
    assert (lag["rows"], lag["seconds"], lag["base"]) == (0, 0.0, None)
    tunnel.delete()


@pytest.mark.spark
@pytest.mark.newest
@pytest.mark.timeout(300)
@pytest.mark.skipif(not ADMISSION, reason="a batch has all that is there")
def test_a_streams_report_has_the_lag_as_numbers(
    spark: SparkSession, heard: Heard, logged: Shop, tmp_path: Path
) -> None:
    filled(logged, 1000)
    logged.sql("CREATE TABLE target LIKE source")
    source = {**logged.login, "dbtable": "source", "binlog": "true", "maxRowsPerTrigger": "400"}
    frame = spark.readStream.format("channel").options(**source, channels="1").load()
    target = {**logged.login, "dbtable": "target", "writeMode": "apply", "keyColumns": "id"}
    query = (
        frame.drop("_lsn", "_commit_ts")
        .writeStream.format("channel")
        .options(**target)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    reports: list[TransferReport] = [report for _, report in heard.batches if report.kind == "read"]
    first = reports[0]
    assert first.lag["base_rows_read"] == 400
    assert first.lag["base_chunks_read"] == 1
    assert 2 <= first.lag["base_chunks"] <= 4
    assert first.lag["rows"] >= 400
    assert "wal_kept_bytes" not in first.lag
    assert "base 1 of" in first.behind
    last = spark_channel.last_report()
    assert last is not None
    assert (last.kind, last.lag["rows"], last.behind) == (
        "write",
        reports[-1].lag["rows"],
        reports[-1].behind,
    )
