"""A `commit=task` transfer that failed continues where it stopped, by the plan in the target: none lost or doubled."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.errors import CommitError, TargetError
from spark_channel.planning import Endpoint, EndpointOverrides, TransferSpec
from spark_channel.progress import TransferReport
from spark_channel.spark.transfer import carry_out
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer
from tests.spark.places import Place, mysql_place, postgres_place, sqlite_place
from tests.spark.remote_driver import RemoteDriver

pytestmark = [pytest.mark.spark, pytest.mark.newest, pytest.mark.timeout(600)]

ROWS = 20_000
BROKEN = (PySparkException, Py4JJavaError)
"""What a step's own exception comes out as, by the release of Spark."""
Step = Callable[[pa.RecordBatch], pa.RecordBatch]


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Place]:
    with postgres_place(postgres_server) as made:
        yield made


@pytest.fixture
def mysql(mariadb_server: MariadbServer) -> Iterator[Place]:
    with mysql_place(mariadb_server) as made:
        yield made


@pytest.fixture(
    params=[
        "sqlite",
        "postgresql",
        pytest.param("mysql", marks=pytest.mark.soak),
        pytest.param("adbc", marks=pytest.mark.soak),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """With an empty table `t` of one column, `id`."""
    if request.param == "sqlite":
        made = sqlite_place(tmp_path / "t.db")
    else:
        made = request.getfixturevalue("mysql" if request.param == "mysql" else "postgres")
    if request.param == "adbc":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        uri = server.url.replace("//", f"//{server.user}:{server.password}@")
        table = f"{made.writer['currentSchema']}.t"
        made.writer = {"name": "adbc", "driver": "postgresql", "uri": uri, "dbtable": table}
    made.run("CREATE TABLE t (id BIGINT)")
    return made


def breaks_at(flag: Path, start: int) -> Step:
    """Rows from `start` on are too much while there is a file `flag`."""

    def step(batch: pa.RecordBatch) -> pa.RecordBatch:
        if flag.exists() and batch.num_rows and pc.max(batch["id"]).as_py() >= start:
            raise RuntimeError("breaks")
        return batch

    return step


def copy(spark: SparkSession, place: Place, *steps: Step, **more: Any) -> TransferReport:
    writer = {"dbtable": "t", **place.writer, "txnAppId": "nightly", "txnVersion": 1}
    reader = {"name": "generator", "rows": ROWS, "schema": "id BIGINT", "rowsPerBatch": 500}
    given: dict[str, Any] = {
        "reader": reader,
        "writer": writer,
        "commit": "task",
        "channels": 2,
        **more,
    }
    return spark_channel.transfer(spark, transformers=steps, **given)


def test_it_goes_on_where_it_stopped(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    """The first run dies in its last rows; the second asks for other channels, and would be cut otherwise.

    Both replace what the table holds, which is to be done once.
    """
    place.run("INSERT INTO t VALUES (-1)")
    flag = tmp_path / "flag"
    flag.touch()
    step = breaks_at(flag, ROWS - 100)
    with pytest.raises(BROKEN, match="breaks"):
        copy(spark, place, step, mode="overwrite")
    done, (rows, *_) = place.tasks(), place.held()
    assert 0 < done < 10
    assert 0 < rows < ROWS
    assert place.kept() > 0
    flag.unlink()
    report = copy(spark, place, step, channels=3, mode="overwrite")
    assert place.held() == [ROWS, ROWS, ROWS * (ROWS - 1) // 2]
    assert place.tasks() == 0, "what is published needs no tasks"
    assert report.rows == ROWS
    assert report.rows_moved <= ROWS - rows
    assert place.kept() == 0
    assert copy(spark, place, step, mode="overwrite").rows == 0
    assert place.held()[0] == ROWS


def test_a_run_of_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    place = sqlite_place(tmp_path / "t.db")
    place.run("CREATE TABLE t (id BIGINT)")
    flag = tmp_path / "flag"
    flag.touch()
    step = breaks_at(flag, ROWS - 100)
    with pytest.raises(BROKEN, match="breaks"):
        copy(spark, place, step)
    before = place.held()
    other = {"name": "generator", "rows": ROWS + 1, "schema": "id BIGINT", "rowsPerBatch": 500}
    with pytest.raises(TargetError, match="has other options of the reader"):
        copy(spark, place, step, reader=other)
    with pytest.raises(TargetError, match="has other transformers"):
        copy(spark, place)
    with pytest.raises(TargetError, match="partially committed"):
        copy(spark, place, step, commit="job")
    assert place.held() == before


def test_rows_that_were_refused_are_counted_again(spark: SparkSession, tmp_path: Path) -> None:
    place = sqlite_place(tmp_path / "t.db")
    place.run("CREATE TABLE t (id BIGINT CHECK (id % 1000 <> 7))")
    flag = tmp_path / "flag"
    flag.touch()
    step = breaks_at(flag, ROWS - 100)
    with pytest.raises(BROKEN, match="breaks"):
        copy(spark, place, step, max_dirty_rows=100)
    assert place.tasks() > 0
    flag.unlink()
    report = copy(spark, place, step, max_dirty_rows=100)
    refused = ROWS // 1000
    assert (report.rows, report.rows_dirty) == (ROWS - refused, refused)
    assert place.held()[:2] == [ROWS - refused, ROWS - refused]


def test_a_target_that_was_published_before_the_others_is_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Two tables, of which the second cannot be published at first."""
    place = sqlite_place(tmp_path / "t.db")
    for table in ("a", "b"):
        place.run(f"CREATE TABLE {table} (id BIGINT)")
    pair = {"txnAppId": "nightly", "txnVersion": "1", "commit": "task"}
    post = "INSERT INTO seen VALUES (1)"
    parts = (
        EndpointOverrides({"dbtable": "a"}),
        EndpointOverrides({"dbtable": "b", "postSql": post}),
    )
    sources = tuple(EndpointOverrides({"rows": rows}) for rows in ("10", "20"))
    spec = TransferSpec(
        Endpoint("generator", {"schema": "id BIGINT"}, parts=sources),
        Endpoint("sqlite", {"path": str(tmp_path / "t.db"), **pair}, parts=parts),
        channels=2,
    )
    with pytest.raises(CommitError, match="no such table: seen"):
        carry_out(spark, spec)
    place.run("CREATE TABLE seen (n INTEGER)")
    carry_out(spark, spec)
    assert place.ask("SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b)") == [10, 20]
    assert place.ask("SELECT count(*) FROM seen") == [1]
    carry_out(spark, spec)
    assert place.ask("SELECT count(*) FROM seen") == [1]


def copy_slowly(spark: SparkSession, writer: dict[str, str], speed: int | None) -> int:
    """From table `s` to table `t` of one schema."""
    pair = {"txnAppId": "nightly", "txnVersion": "1", "commit": "task"}
    reader = {**writer, "dbtable": "s"}
    return spark_channel.transfer(
        spark, reader, {**writer, "dbtable": "t", **pair}, channels=2, rows_per_second=speed
    ).rows


@pytest.mark.soak
def test_a_killed_driver_is_followed_by_another(spark: SparkSession, postgres: Place) -> None:
    """Rows came into the source meanwhile, so that another plan would cut it elsewhere: they come along or not."""
    postgres.run(f"CREATE TABLE s AS SELECT g::bigint AS id FROM generate_series(0, {ROWS - 1}) g")
    postgres.run("ALTER TABLE s ADD PRIMARY KEY (id); CREATE TABLE t (id bigint)")
    with RemoteDriver("local[2,2]") as driver:
        copying = driver.submit(copy_slowly, postgres.writer, ROWS // 5)
        end = time.monotonic() + 120
        while not committed(postgres):
            assert time.monotonic() < end
            assert not copying.done(), copying.exception()
            time.sleep(0.05)
        driver.kill()
    before = postgres.tasks()
    assert before < 10, "it was killed in time"
    rows = postgres.held()[0]
    postgres.run(f"INSERT INTO s SELECT -g FROM generate_series(1, {ROWS}) g; ANALYZE s")
    copied = copy_slowly(spark, postgres.writer, None)
    assert postgres.tasks() == 0
    held = postgres.held()
    assert held[0] == held[1] == copied, f"{before} tasks with {rows} rows were there"
    assert postgres.ask("SELECT count(*), sum(id) FROM t WHERE id >= 0") == [
        ROWS,
        ROWS * (ROWS - 1) // 2,
    ]


def committed(place: Place) -> bool:
    try:
        return place.tasks() >= 2
    except RuntimeError:
        return False
