"""What this package sends to Spark of its errors."""

import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructType
from pyspark.util import handle_worker_exception

from spark_channel import errors
from spark_channel.errors import ChannelError
from spark_channel.spark import worker
from spark_channel.spark.source import ChannelDataSource

ROOT = Path(__file__).resolve().parents[2]
ROWS = StructType().add("id", LongType())


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database, in a process that takes itself for a worker of Spark."""
    monkeypatch.setattr(worker, "is_worker", lambda: True)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.execute("INSERT INTO orders VALUES (1)")
    return path


def drop(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE orders")


def sent(step: Callable[[], object]) -> str:
    """What pyspark sends to the JVM of the error of `step`."""
    out = io.BytesIO()
    try:
        step()
    except ChannelError as error:
        handle_worker_exception(error, out)
    return out.getvalue()[8:].decode()


def source(path: Path, **options: str) -> ChannelDataSource:
    return ChannelDataSource({"path": str(path), "dbtable": "orders", **options})


def test_planning_a_read(database: Path) -> None:
    reader = source(database).reader(ROWS)
    drop(database)
    for step in (source(database).schema, reader.partitions):
        assert sent(step).startswith(
            f"spark_channel.errors.SourceError: table 'orders' does not exist in {database}"
        )


@pytest.mark.parametrize("step", ["initial", "latest", "partitions"])
def test_a_stream(database: Path, step: str) -> None:
    """31 to 131 lines of frames were around the message."""
    options = {
        "cursorColumn": "id",
        "tunnelType": "stream",
        "startingOffsets": "earliest",
        "lateSeconds": "0",
    }
    reader = source(database, **options).streamReader(ROWS)
    start = reader.initialOffset()
    steps: dict[str, Callable[[], object]] = {
        "initial": source(database, **{**options, "startingOffsets": "latest"})
        .streamReader(ROWS)
        .initialOffset,
        "latest": lambda: reader.latestOffset(start, reader.getDefaultReadLimit()),  # type: ignore[call-arg] # with admission, since Spark 4.2
        "partitions": lambda: reader.partitions(start, start),
    }
    if step == "partitions":
        end = reader.latestOffset(start, reader.getDefaultReadLimit())  # type: ignore[call-arg] # with admission, since Spark 4.2
        steps[step] = lambda: reader.partitions(start, end)
    drop(database)
    text = sent(steps[step])
    assert text.startswith("spark_channel.errors.")
    assert "orders" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_names_a_page_that_is_there(name: str) -> None:
    from tests.test_docs_names import anchors

    kind = getattr(errors, name)
    if not isinstance(kind, type):
        return  # a function that marks an error
    command, _, anchor = worker.docs_link_of(kind("lost")).partition("#")
    page = ROOT / "docs" / f"{command.removeprefix('spark-channel help ')}.md"
    assert page.exists()
    assert not anchor or anchor in anchors(page)


def test_a_typo_is_answered_by_its_message_and_the_page_of_options(database: Path) -> None:
    message = "unknown option 'rowPerSecond' of connector 'sqlite'; did you mean 'rowsPerSecond'?"
    text = sent(lambda: source(database, rowPerSecond="20k").schema())
    assert text.splitlines() == [
        f"spark_channel.errors.OptionError: {message}",
        "See `spark-channel help options`",
    ]
    own = worker.own_error(
        RuntimeError(f"[PYTHON_DATA_SOURCE_ERROR] failed: {text} SQLSTATE: 38000\n\tat java.lang")
    )
    assert isinstance(own, errors.OptionError)
    assert str(own) == message


def test_what_is_not_ours_keeps_its_frames(database: Path) -> None:
    out = io.BytesIO()
    try:
        with worker.without_traceback():
            raise KeyError("lost")
    except KeyError as error:
        handle_worker_exception(error, out)
    assert out.getvalue()[8:].startswith(b"Traceback")
