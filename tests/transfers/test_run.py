"""The parts of a transfer without a session: options, addresses, errors."""

import socket
from collections import Counter
from contextlib import ExitStack
from datetime import date

import pyarrow as pa
import pytest

from spark_channel.connectors import Connector
from spark_channel.connectors.base import registry
from spark_channel.errors import (
    CommitError,
    JobCancelledError,
    OptionError,
    SourceError,
    TargetError,
)
from spark_channel.planning import Endpoint, EndpointOverrides, TransferSpec
from spark_channel.spark.worker import own_error
from spark_channel.transfers.options import job_options
from spark_channel.transfers.plan import first_reachable, open_transfer, server_of
from spark_channel.transfers.resume import _outline
from spark_channel.transfers.resume import _tasks as kept_tasks


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("jdbc:mysql://db.example:3307/shop?x=1", ("db.example", 3307)),
        ("mysql://user:pw@db.example/shop", ("db.example", 3306)),
        ("postgresql://[::1]:5433/shop", ("::1", 5433)),
        ("jdbc:oracle:thin:@//db:1522/orcl", ("db", 1522)),
        ("jdbc:sqlserver://db;databaseName=x", ("db", 1433)),
        ("sqlite:///tmp/x.db", None),
        ("x.db", None),
    ],
)
def test_a_url_names_its_server(url: str, server: tuple[str, int] | None) -> None:
    assert server_of(url) == server


def test_the_first_server_that_answers_is_taken() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"mysql://root:secret@127.0.0.1:{free.getsockname()[1]}/x"
        with socket.create_server(("127.0.0.1", 0)) as listening:
            alive = f"mysql://127.0.0.1:{listening.getsockname()[1]}/x"
            assert first_reachable([dead, alive]) == alive
        with pytest.raises(SourceError, match=r"no server answers: mysql://root:\*\*\*@127"):
            first_reachable([dead])


def spec(reader: dict[str, object], writer: dict[str, object], **more: object) -> TransferSpec:
    ends = (
        Endpoint.parse("reader", {"name": "csv", **reader}),
        Endpoint.parse("writer", {"name": "csv", **writer}),
    )
    return TransferSpec(*ends, **more)  # type: ignore[arg-type] # mypy does not see what a mapping has


def test_options_of_the_job_may_stand_at_either_end() -> None:
    job = job_options(
        spec(
            {"rowsPerSecond": "5k", "path": "a", "CHANNELS": 3},
            {"maxDirtyRows": 4, "path": "b", "sep": "|"},
        ),
        {},
    )
    assert dict(job.job) == {"rowsPerSecond": "5k", "maxDirtyRows": 4}
    assert job.limits == {"rowsPerSecond": "5k"}
    assert (job.spec.channels, job.spec.reader.options, job.spec.writer.options) == (
        3,
        {"path": "a"},
        {"path": "b", "sep": "|"},
    )


def test_two_different_values_are_an_error_and_the_same_twice_is_not() -> None:
    job_options(spec({"jobId": "a"}, {"jobid": "a"}), {})
    with pytest.raises(OptionError, match="'jobid' is given in two places"):
        job_options(spec({"jobId": "a"}, {"jobid": "b"}), {})


def test_no_error_limit_is_no_limit() -> None:
    assert job_options(spec({}, {}, max_dirty_rows=None), {}).job == {"maxDirtyRows": "unlimited"}
    assert job_options(spec({}, {}, max_dirty_rows=7), {}).job == {"maxDirtyRows": 7}
    assert job_options(spec({}, {}, max_dirty_rows=None, max_dirty_fraction=0.5), {}).job == {
        "maxDirtyFraction": 0.5
    }


def test_references_are_resolved_where_a_connector_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_USER", "ada")
    job = job_options(spec({"user": "${env:SHOP_USER}"}, {}), {})
    assert job.spec.reader.options == {"user": "ada"}


def test_our_error_is_found_in_sparks() -> None:
    page = (
        "An error occurred while calling z:collect.\n: org.apache.spark.SparkException: Job aborted\n"
        'Traceback (most recent call last):\n  File "x.py", line 3, in run\n'
        "spark_channel.errors.CommitError: disk full\nof everything\n\n\tat org.apache.spark.api"
    )
    found = own_error(RuntimeError(page))
    assert isinstance(found, CommitError)
    assert str(found) == r"disk full\nof everything", "one message is one line"
    assert own_error(ValueError("not of this package")) is None
    cancelled = own_error(
        RuntimeError("[SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group g\n\tat x")
    )
    assert isinstance(cancelled, JobCancelledError)
    assert "([SPARK_JOB_CANCELLED] Job 7 cancelled part of cancelled job group g)" in str(cancelled)


def outline(options: dict[str, str], name: str, *parts: EndpointOverrides) -> str:
    """The digest of a reader's options that is kept beside the ledger."""
    spec = TransferSpec(Endpoint(name, options, parts=parts), Endpoint("discard"))
    return _outline(spec, pa.schema([("id", pa.int64())]))["options of the reader"]


SHOP = {
    "url": "postgresql://me:pw@h:5432/shop?sslmode=require&password=x",
    "dbtable": "orders",
    "where": "id > 5",
    "user": "me",
    "password": "pw",
    "fetchSize": "10",
    "retryTimeout": "4",
    "connectTimeout": "3",
}
ADBC = {"driver": "sqlite", "uri": "file:/a.db", "dbtable": "t", "driverOptions": '{"k": "v"}'}


def test_a_kept_plan_is_of_the_same_reader_in_every_version() -> None:
    assert (
        outline(SHOP, "postgresql")
        == "42b78415d6e905120abf89a66f5030ff9ad0022060f1eeaa6d6bdcb1c6216b99"
    )
    parts = EndpointOverrides({"dbtable": "a"}, ("mysql://u:p@h/d", "mysql://h2/d"))
    shared = {"dbtable": "t", "password": "x", "user": "y", "numPartitions": "3"}
    assert (
        outline(shared, "mysql", parts)
        == "3a96c61780aa84987e67cf8722f0f7904ebfd454c79f8e88e023a596d058c7ef"
    )
    assert (
        outline(ADBC, "adbc") == "07361bd681d06c6993f36bb2a54abb5090de1c83d2a36458e6bf1a1bfd6b2bab"
    )


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"user": "you", "password": "other"}, True),
        ({"url": "postgresql://me:other@h:5432/shop?sslmode=require&password=y"}, True),
        ({"fetchSize": "99", "retryTimeout": "7", "connectTimeout": "9"}, True),
        ({"sslrootcert": "/ca", "queryTimeout": "5"}, True),
        ({"where": "id > 6"}, False),
        ({"url": "postgresql://me:pw@other:5432/shop?sslmode=require&password=x"}, False),
        ({"currentSchema": "b"}, False),
    ],
)
def test_a_half_done_transfer_goes_on_with_options_that_change_no_row(
    change: dict[str, str], same: bool
) -> None:
    assert (outline({**SHOP, **change}, "postgresql") == outline(SHOP, "postgresql")) is same


@pytest.mark.parametrize("change", [{"uri": "file:/b.db"}, {"driverOptions": '{"k": "w"}'}])
def test_a_secret_that_names_the_source_makes_it_another(change: dict[str, str]) -> None:
    assert outline({**ADBC, **change}, "adbc") != outline(ADBC, "adbc")


def test_a_third_party_s_server_has_the_port_that_it_declares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = Connector("firebird", "their.module:Reader", None, schemes=("firebird",), port=3050)
    monkeypatch.setattr(registry, "_third_parties", lambda: {"firebird": theirs})
    assert server_of("jdbc:firebird://h/shop") == ("h", 3050)
    assert server_of("firebird://me:p/w?@h:3051/shop") is None  # it can be read in two ways
    assert server_of("firebird://me:p%2Fw@h:3051/shop") == ("h", 3051)


KEPT = (
    '{"version":2,"outline":{"columns":"c"},"tasks":[[0,0,null,{"low":1,"day":{"$":"date","v":"2024-01-31"}},10,null],'
    "[1,0,1,{},null,80]]}"
)


def test_a_plan_that_was_kept_is_read() -> None:
    first, second = kept_tasks(KEPT, "j", ("n", 1), {"columns": "c"})
    assert (first.id, first.split.rows, first.split.nbytes, first.writer_part) == (
        0,
        10,
        None,
        None,
    )
    assert first.split.params["split"].params == {"low": 1, "day": date(2024, 1, 31)}
    assert (second.id, second.split.nbytes, second.writer_part) == (1, 80, 1)


@pytest.mark.parametrize(
    "text",
    [
        KEPT.replace('"version":2', '"version":1'),
        KEPT.replace('"tasks"', '"others"'),
        "{}",
        "[]",
        "{",
        "",
        KEPT.replace("[1,0,1,{},null,80]", '[1,"x"]'),
        KEPT.replace('"$":"date"', '"$":"later"'),
    ],
)
def test_a_plan_of_another_version_or_a_damaged_one_is_told(text: str) -> None:
    with pytest.raises(
        TargetError,
        match="transaction id 'n:1' is partially committed by job 'j', whose plan another version",
    ):
        kept_tasks(text, "j", ("n", 1), {"columns": "c"})


@pytest.mark.parametrize(
    ("connector", "scheme"),
    [("postgresql", "postgresql"), ("mysql", "mysql"), ("mysql", "jdbc:mysql")],
)
def test_a_transfer_to_more_hosts_than_it_reads_is_spread_over_them(
    connector: str, scheme: str
) -> None:
    """Two hosts in turn, over two Spark tasks: dealt in turn, each task would load one host alone."""
    targets = tuple(
        EndpointOverrides(
            {"dbtable": f"t{number}"}, (f"{scheme}://u:p@db{number % 2}.example/shop",)
        )
        for number in range(8)
    )
    wanted = TransferSpec(
        Endpoint("generator", {"rows": "8000"}),
        Endpoint(connector, {}, parts=targets),
        channels=2,
    )
    with ExitStack() as held:
        opened = open_transfer(job_options(wanted, {}), 2, held)
    assert [task.writer_mark for task in opened.plan.tasks] == ["db0.example", "db1.example"] * 4
    for group in opened.plan.groups:
        assert Counter(task.writer_mark for task in group.tasks) == {
            "db0.example": 2,
            "db1.example": 2,
        }
