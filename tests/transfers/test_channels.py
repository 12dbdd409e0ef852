"""A job leaves connections of its servers to others, however many channels it is asked for."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_channel import replicate, transfer
from spark_channel.connectors import load_reader, load_writer
from spark_channel.connectors.base.overlap import FreeConnections
from spark_channel.errors import ChannelError
from spark_channel.transfers.channels import channel_bound, jobs_at_once, task_bound
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.timeout(120)
ROWS = 400
MOST = 12
"""Connections that the job's login may have."""


class Side:
    """A reader or writer of a server with so many free connections; None = it does not say."""

    def __init__(self, server: str, count: int | None) -> None:
        self._answer = None if count is None else FreeConnections(server, server, count)
        self.asked = 0

    def free_connections(self) -> FreeConnections | None:
        self.asked += 1
        return self._answer


def bound(*sides: Side, wanted: int = 1000, cores: int = 8, most: int | None = None) -> int:
    return channel_bound(sides, channels_wanted=wanted, cores=cores, most=most).channels  # type: ignore[arg-type]


def test_channels_are_bounded_by_cores_and_by_what_each_server_has_left() -> None:
    assert bound(Side("a", None), Side("b", None), cores=2) == 16
    assert bound(Side("a", 40), Side("b", None)) == 27, (
        "a quarter, and three of the driver, are left"
    )
    assert bound(Side("a", 40), Side("a", 38)) == 13, "a channel has two connections of one server"
    assert bound(Side("a", 40), Side("b", 12)) == 6
    assert bound(Side("a", 2), Side("b", 2)) == 1
    assert bound(Side("a", 2), most=50) == 50


def test_few_channels_do_not_ask_the_servers() -> None:
    side = Side("a", 1)
    assert bound(side, wanted=4) == 64
    assert side.asked == 0
    remark = channel_bound([side], channels_wanted=9, cores=8, most=None).remark(9)  # type: ignore[list-item]
    assert remark == (
        "9 channels were asked for, and 1 run at the same time (a has 1 free connections); the other splits wait for "
        "them. Option 'maxChannels' sets another number"
    )


def at_once(*ends: list[Side], wanted: int = 100, channels: int = 2, cores: int = 8) -> int:
    return jobs_at_once("jobs", wanted, *ends, channels=channels, cores=cores)  # type: ignore[arg-type]


def test_jobs_beside_each_other_leave_connections_to_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert at_once([Side("a", None)], [Side("b", None)], wanted=64) == 64
    assert not caplog.messages
    assert at_once([], []) == 64, "8 for each core"
    caplog.clear()
    assert at_once([Side("a", 40)], [Side("b", 400)]) == 10
    assert caplog.messages == [
        "100 jobs at the same time were asked for, and 10 run (a has 40 free connections); the others wait for them"
    ]
    assert at_once([Side("a", 40)], [Side("a", 40)]) == 5, "both ends are one server"
    assert at_once([Side("a", 400), Side("c", 20)], [Side("b", None)]) == 5
    assert at_once([Side("a", 40)], [], channels=1000, cores=1) == 3
    assert at_once([Side("a", 1)], [Side("a", 1)]) == 1
    few = Side("a", 1)
    assert at_once([few], [few], wanted=4) == 4
    assert few.asked == 0


def of_tasks(side: Side, tasks: int | None, **facts: int) -> int | None:
    bound = task_bound(side, tasks=tasks, **facts)  # type: ignore[arg-type]
    return None if bound is None else bound.channels


def test_tasks_of_spark_are_bounded_where_all_of_them_would_take_too_many_connections() -> None:
    assert of_tasks(Side("a", None), 100) is None, "it does not say"
    assert of_tasks(Side("a", 40), 13) is None, (
        "27 are for the job: 13 tasks, each reads and writes"
    )
    assert of_tasks(Side("a", 40), 14) == 13
    assert of_tasks(Side("a", 40), 19) == 9, "more than two thirds of 27"
    assert of_tasks(Side("a", 40), None) == 9, "so many may run"
    assert of_tasks(Side("a", 40), 27, shared=False) is None
    assert of_tasks(Side("a", 40), 28, shared=False) == 27
    assert of_tasks(Side("a", 40), 13, of_a_task=2) == 9, "channels of tasks of two each"
    assert of_tasks(Side("a", 3), 3) == 1


@pytest.mark.parametrize("free", range(10, 500, 7))
def test_reads_and_writes_of_one_server_in_one_query_leave_it_connections(free: int) -> None:
    for tasks in range(1, 2 * free):
        bound = of_tasks(Side("a", free), tasks)
        of_each = tasks if bound is None else bound
        for reads in (1, 2, 3, 4):
            # A task reads one table at a time. Those that write beside it are connected once more.
            reading = min(tasks, reads * of_each)
            assert reading < free
            if reads < 4:
                assert reading + min(tasks, of_each) < free


def test_a_server_that_refuses_the_question_gets_one_connection() -> None:
    class Full(Side):
        def free_connections(self) -> FreeConnections | None:
            raise ChannelError("too many connections")

    assert of_tasks(Full("a", None), 100) == 1
    few = Side("a", 1)
    assert of_tasks(few, 2) is None
    assert few.asked == 0


@pytest.fixture
def postgresql(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    name = "few_connections"
    postgres_server.psql(
        f"CREATE ROLE {name} LOGIN PASSWORD 'pw' CONNECTION LIMIT {MOST}; CREATE SCHEMA {name} AUTHORIZATION {name};"
        f"CREATE TABLE {name}.source AS SELECT g AS id FROM generate_series(1, {ROWS}) g;"
        f"ALTER TABLE {name}.source ADD PRIMARY KEY (id), OWNER TO {name}"
    )
    try:
        yield {
            "url": postgres_server.url,
            "user": name,
            "password": "pw",
            "currentSchema": name,
        }
    finally:
        postgres_server.psql(f"DROP SCHEMA {name} CASCADE; DROP ROLE {name}")


@pytest.fixture
def mariadb(mariadb_server: MariadbServer) -> Iterator[dict[str, str]]:
    name = "few_connections"
    mariadb_server.sql(
        f"CREATE DATABASE {name}; CREATE USER {name}@'%' IDENTIFIED BY 'pw' WITH MAX_USER_CONNECTIONS {MOST};"
        f"GRANT ALL ON {name}.* TO {name}@'%'; CREATE TABLE {name}.source (id int PRIMARY KEY);"
        f"USE {name}; INSERT INTO source SELECT seq FROM seq_1_to_{ROWS}"
    )
    try:
        yield {
            "url": f"mysql://127.0.0.1:{mariadb_server.port}/{name}",
            "user": name,
            "password": "pw",
        }
    finally:
        mariadb_server.sql(f"DROP DATABASE {name}; DROP USER {name}@'%'")


@pytest.fixture(params=["postgresql", "mariadb"])
def login(request: pytest.FixtureRequest) -> dict[str, str]:
    found: dict[str, str] = request.getfixturevalue(request.param)
    return found


def test_a_server_says_what_it_has_left_for_a_login(login: dict[str, str]) -> None:
    reader, _ = load_reader({**login, "dbtable": "source"})
    writer, _ = load_writer({**login, "dbtable": "target"})
    read, written = reader.free_connections(), writer.free_connections()
    assert read is not None
    assert written is not None
    assert read.server == written.server
    assert read.count == MOST - 1, "one asks"


def test_a_job_of_many_channels_leaves_connections_to_others(
    login: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    report = transfer(
        None, {**login, "dbtable": "source", "numPartitions": "200"}, {**login, "dbtable": "target"}
    )
    assert report.rows == ROWS
    assert report.tasks >= 200
    assert re.search("200 channels were asked for, and [23] run at the same time", caplog.text)


def test_more_channels_are_an_option_of_another_name(login: dict[str, str]) -> None:
    with pytest.raises(ChannelError, match="connection"):
        transfer(
            None,
            {**login, "dbtable": "source", "numPartitions": "200", "maxChannels": "200"},
            {**login, "dbtable": "target"},
        )


def test_many_tables_at_the_same_time_leave_connections_to_others(
    login: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = 20
    for number in range(tables):
        transfer(
            None, {**login, "dbtable": "source"}, {**login, "dbtable": f"s{number}"}, channels=1
        )
    place = f'{{url: "{login["url"]}", user: {login["user"]}, password: "pw"}}'
    names = ", ".join(f'"few_connections.s{number}": ' for number in range(tables))
    file = tmp_path / "many.yml"
    file.write_text(
        f"source: {place}\ntarget: {place}\nparallel: {tables}\n"
        f'defaults: {{object: "few_connections.t_{{table}}"}}\nstreams: {{{names}}}\n'
    )
    report = replicate(None, str(file))
    assert [(each.state, each.rows) for each in report.tables] == [("done", ROWS)] * tables
    assert f"{tables} tables at the same time were asked for, and" in caplog.text
