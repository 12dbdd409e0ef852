"""A query that says how the protected system feels: in Python, and through `limits serve` as a process."""

import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from spark_channel.errors import OptionError, SourceError
from spark_channel.limits import LimitStatus
from spark_channel.service import LimitControl, Probe, SharedLimit, sql_value
from tests.service.helpers import serve_limit, wait_for

QUERY = "SELECT max(seconds) FROM lag"
UNREACHABLE = "unreachable: probe: {} failed with SourceError ({:.0f} rows/s)"


class Replica:
    """A SQLite file that stands for a database which says how far it is behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:{path}"
        self._run("CREATE TABLE lag (seconds INT)")

    def lag(self, seconds: float | None) -> None:
        self._run("DELETE FROM lag")
        if seconds is not None:
            self._run("INSERT INTO lag VALUES (?)", seconds)

    def _run(self, sql: str, *values: float) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(sql, values)


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(tmp_path / "replica.db")


def test_a_query_is_a_number_each_time_anew(replica: Replica) -> None:
    measure = sql_value({"url": replica.url, "query": QUERY})
    with pytest.raises(SourceError, match="NULL"):
        measure()
    for seconds in (3, 40, 2.5):
        replica.lag(seconds)
        assert measure() == seconds
    replica.lag(None)
    with pytest.raises(SourceError, match="no row"):
        sql_value({"url": replica.url, "query": "SELECT seconds FROM lag"})()


def test_what_no_connector_reads_is_refused_at_once(replica: Replica) -> None:
    with pytest.raises(OptionError, match="scheme"):
        sql_value({"url": "gopher://db", "query": QUERY})
    with pytest.raises(OptionError, match="did you mean 'query'"):
        sql_value({"url": replica.url, "quary": QUERY})


def test_a_server_that_does_not_answer_is_asked_once_in_a_measurement() -> None:
    """It is asked again soon enough; a minute of tries would be a minute in which no policy acts."""
    measure = sql_value({"url": "postgresql://watch@127.0.0.1:1/orders", "query": QUERY})
    with pytest.raises(SourceError, match="no server answers"):
        measure()


@pytest.mark.parametrize(
    ("policy", "speed", "effective"),
    [("hold", "open", 1_000), ("hold", "pressed", 50), ("lower", "open", 50), ("pause", "open", 0)],
)
def test_it_lowers_restores_and_names_what_it_cannot_reach(
    replica: Replica, policy: str, speed: str, effective: float
) -> None:
    replica.lag(40)
    probe = Probe(
        sql_value({"url": replica.url, "query": QUERY}),
        threshold=30,
        seconds=0.01,
        what="replication lag",
        policy=policy,
    )
    with SharedLimit("orders-db", rows_per_second=1_000, probe=probe) as limit:
        wait_for_pressure(
            limit.status, "pressed: probe's replication lag 40, at most 30 (50 rows/s)", 50
        )
        if speed == "open":
            replica.lag(2)
            wait_for_pressure(limit.status, "", 1_000)
        replica.path.unlink()
        wait_for_pressure(limit.status, UNREACHABLE.format("replication lag", effective), effective)


def test_a_limit_of_bytes_falls_as_one_of_rows() -> None:
    probe = Probe(lambda: 40.0, 30, seconds=0.01)
    with SharedLimit("orders-db", bytes_per_second="1m", probe=probe) as limit:
        full = limit.status().bytes_per_second
        assert full

        def reached() -> bool:
            now = limit.status()
            return now.effective_bytes_per_second == pytest.approx(0.05 * full)

        wait_for(reached, "a twentieth", 10.0)
        least = f"{0.05 * full:.0f}"
        assert limit.status().pressure == f"pressed: probe's value 40, at most 30 ({least} bytes/s)"


def test_a_served_limit_watches_a_database(
    serve: list[subprocess.Popen[str]], replica: Replica
) -> None:
    replica.lag(40)
    serve_limit(
        serve,
        "--rows-per-second",
        "1000",
        "--probe-url",
        replica.url,
        "--probe-query",
        QUERY,
        "--probe-threshold",
        "30",
        "--probe-seconds",
        "0.1",
        "--probe-policy",
        "pause",
    )

    def status() -> LimitStatus:
        return LimitControl().show("orders-db")

    wait_for_pressure(status, "pressed: probe's query 40, at most 30 (50 rows/s)", 50)
    replica.lag(2)
    wait_for_pressure(status, "", 1_000)
    replica.path.unlink()
    wait_for_pressure(status, UNREACHABLE.format("query", 0), 0)
    Replica(replica.path).lag(2)
    wait_for_pressure(status, "", 1_000)


def wait_for_pressure(status: Callable[[], LimitStatus], text: str, rows_per_second: float) -> None:
    def reached() -> bool:
        now = status()
        texts = now.pressure.split("; ")
        return text in texts and now.effective_rows_per_second == rows_per_second

    wait_for(reached, text or "full speed", 30.0)
