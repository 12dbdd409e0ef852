"""Two equal tables of PostgreSQL compared: verify against Spark's exceptAll both ways, and against two sums of hashes.

Needs the server; `.ci/servers` installs it.
"""

import os
from collections.abc import Callable
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

import spark_channel
from spark_channel.verification import run
from tests.benchmarks.harness import Row, alternate, print_table, ratio
from tests.servers.postgres import PostgresServer

ROUNDS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROUNDS", "3"))
ROWS = int(os.environ.get("SPARK_CHANNEL_BENCH_ROWS", "1000000"))
TABLE = "(id bigint PRIMARY KEY, name text, total numeric(12, 4), share float8, at timestamptz)"
FILL = (
    "SELECT n * 3, 'name ' || n, n / 8.0, n / 3.0, timestamptz '2026-01-31 00:00Z' + n * interval '1 s' "
    f"FROM generate_series(1, {ROWS}) n"
)
SUM = "SELECT count(*), sum(hashtextextended(CAST(t AS text), 0)) FROM {} t"


def main() -> list[Row]:
    """The rows of this benchmark."""
    server = PostgresServer.create()
    try:
        for name in ("a", "b"):
            server.psql(f"CREATE TABLE {name} {TABLE}; INSERT INTO {name} {FILL}")
            server.psql(f"VACUUM ANALYZE {name}")
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        spark_channel.register(spark)
        try:
            return _rows(server, spark)
        finally:
            spark.stop()
    finally:
        server.close()


def _rows(server: PostgresServer, spark: SparkSession) -> list[Row]:
    one, other = ({**server.login, "dbtable": name} for name in ("a", "b"))

    def verified() -> None:
        assert spark_channel.verify(None, one, other).equal == ROWS

    def by_rows() -> None:
        with mock.patch.object(run, "same_hashes", return_value=None):
            verified()

    def excepted() -> None:
        frames = [
            spark.read.format("channel").options(**_texts(side)).load() for side in (one, other)
        ]
        assert not frames[0].exceptAll(frames[1]).count()
        assert not frames[1].exceptAll(frames[0]).count()

    def summed() -> None:
        for name in ("a", "b"):
            server.psql(SUM.format(name))

    def against(what: Callable[[], None], than: Callable[[], None]) -> float:
        return ratio(*alternate(than, what, ROUNDS))

    return [
        Row("exceptAll / verify, checksums in the databases", against(verified, excepted), ">= 3"),
        Row("exceptAll / verify, rows", against(by_rows, excepted), ">= 2"),
        Row("verify / two sums of hashes", 1 / against(verified, summed), "<= 1.3"),
    ]


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {"reader": "postgresql", **{name: str(value) for name, value in options.items()}}


if __name__ == "__main__":
    print_table(main())
