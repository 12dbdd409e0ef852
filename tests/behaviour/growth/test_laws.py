"""The table "How cost grows" of docs/benchmarks.md: counts at sizes 1, 10 and 100 grow no faster than it says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.base.feed import FeedLimit
from spark_channel.connectors.sqlite.session import SqliteSession
from spark_channel.tunnel.channel import RangeSize
from tests.behaviour.exactly_once.targets import Target, open_target
from tests.behaviour.growth.test_claims import Jobs
from tests.behaviour.growth.test_files import _copied
from tests.behaviour.growth.test_followed_tables import ranges_of_small_tables, written_by_a_range
from tests.behaviour.growth.work import (
    bytes_of_an_offset,
    bytes_of_an_offset_in_late_seconds,
    calls_of_a_grant,
    calls_of_a_job_file,
    calls_of_a_job_into_a_folder,
    calls_of_a_kafka_topic,
)

_PAGE = Path(__file__).parents[3] / "docs" / "benchmarks.md"
_SIZES = (1, 10, 100)
_ELSEWHERE = {
    "connections of a plan": "test_plans.py",
    "statements to the target in a dry run of new tables": "test_plans.py",
    "reads of SQLite's whole catalog in a dry run, claims aside": "test_catalogs.py",
    "what PostgreSQL estimates, and MySQL and MariaDB open, for three named tables": "test_catalogs.py",
    "what PostgreSQL estimates for all tables of its catalog": "test_catalogs.py",
    "opens of a SQLite or DuckDB file, and lists of DuckDB's catalog, in a dry run": "test_catalogs.py",
    "questions to the publication and looks at the slot in that run": "test_followed_tables.py",
    "calls of a micro-batch, and claims of its query": "test_micro_batches.py",
    "dumps of a binary log": "../../connectors/mysql/log/test_dump.py",
    "descriptions in a look at a Kafka topic": "../../connectors/kafka/test_kafka_feed.py",
    "descriptions of a Kafka topic in a read": "../../connectors/kafka/test_kafka_feed.py",
    "Kafka clients of a tunnel": "../../connectors/kafka/test_kafka_tunnel.py",
    "lists that an overwrite beside a job that adds files writes": "../../connectors/files/test_parts.py",
}
"""What needs a server, and the test that holds it."""


def _laws() -> dict[str, str]:
    table = _PAGE.read_text().partition("<summary>What is counted")[2].partition("</details>")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {what: law for what, _, law in rows[1:]}


def _target(path: Path) -> Target:
    path.mkdir()
    (target,) = open_target("sqlite", None, path)  # type: ignore[arg-type] # asks for no fixture
    target.reset(True)
    return target


def _statements(path: Path, size: int) -> int:
    jobs, sent, rows = Jobs(_target(path)), 0, SqliteSession.rows
    jobs.run(*range(size))

    def counted(session: SqliteSession, sql: str, parameters: Any = ()) -> Any:
        nonlocal sent
        sent += 1
        return rows(session, sql, parameters)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteSession, "rows", counted)
        jobs.run(size)
    return sent


def _claims(path: Path, size: int) -> int:
    jobs = Jobs(_target(path))
    jobs.run(*range(size))
    jobs.age()
    jobs.run(size)
    return jobs.claims("txn") + jobs.claims("versions")


def _files(path: Path, size: int) -> int:
    path.mkdir()
    return _copied(path, "parquet", size)


def _ranges(_path: Path, size: int) -> int:
    """Where the search of each takes 3 s."""
    feed, left, ranges = RangeSize(FeedLimit(), 0.4), 10_000 * size, 0
    while left:
        rows = min(left, feed.limit().rows or left)
        feed.took(3.0 + rows * 1e-5, rows)
        left, ranges = left - rows, ranges + 1
    return ranges


_COUNTS: dict[str, Callable[[Path, int], int]] = {
    "statements of one more job": _statements,
    "rows of claims that stay": _claims,
    "files that a job makes": _files,
    "ranges of a change feed": _ranges,
    "bytes that a range of one followed table writes": written_by_a_range,
    "ranges of the first run of small followed tables, up to 500": ranges_of_small_tables,
    "bytes of the offset of a folder's stream": bytes_of_an_offset_in_late_seconds,
    "the same": bytes_of_an_offset,
    "calls of the coordinator for one request of a client": calls_of_a_grant,
    "calls to read a job file": calls_of_a_job_file,
    "calls to plan a Kafka topic and look at it, its brokers aside": calls_of_a_kafka_topic,
    "calls of one more job into a folder": calls_of_a_job_into_a_folder,
}


def test_each_row_of_the_table_has_a_test() -> None:
    assert _laws().keys() == {*_COUNTS, *_ELSEWHERE}
    assert all((Path(__file__).parent / name).is_file() for name in _ELSEWHERE.values())
    assert set(_laws().values()) == {"constant", "linear"}


@pytest.mark.full
@pytest.mark.parametrize("what", _COUNTS)
def test_a_count_grows_no_faster_than_the_table_says(what: str, tmp_path: Path) -> None:
    counts = [_COUNTS[what](tmp_path / str(size), size) for size in _SIZES]
    most = {"constant": 1, "linear": 10}[_laws()[what]]
    assert counts[1] <= most * counts[0], counts
    assert counts[2] <= most * counts[1], counts
