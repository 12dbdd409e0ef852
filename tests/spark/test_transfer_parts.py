"""What a transfer is made of, without a session: options, addresses, errors."""

import socket
from collections import Counter
from contextlib import ExitStack

import pytest

from spark_channel.errors import CommitError, OptionError, SourceError
from spark_channel.planning import Endpoint, EndpointPart, TransferSpec
from spark_channel.spark.failures import own_error
from spark_channel.spark.reachable import first_reachable, server_of
from spark_channel.spark.transfer_options import job_options
from spark_channel.spark.transfer_plan import open_transfer


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
    return TransferSpec(*ends, **more)  # type: ignore[arg-type]


def test_options_of_the_job_may_stand_at_either_end() -> None:
    job = job_options(
        spec(
            {"rowsPerSecond": "5k", "path": "a", "CHANNELS": 3}, {"maxDirtyRows": 4, "path": "b", "sep": "|"}
        ),
        {},
    )
    assert dict(job.job) == {"rowsPerSecond": "5k", "maxDirtyRows": 4}
    assert job.limits == {"rowsPerSecond": "5k"}
    assert (job.spec.channels, job.spec.reader.options, job.spec.writer.options) == (
        3, {"path": "a"}, {"path": "b", "sep": "|"},
    )  # fmt: skip


def test_two_different_values_are_an_error_and_the_same_twice_is_not() -> None:
    job_options(spec({"jobId": "a"}, {"jobid": "a"}), {})
    with pytest.raises(OptionError, match="'jobid' stands in two places"):
        job_options(spec({"jobId": "a"}, {"jobid": "b"}), {})


def test_no_error_limit_is_no_limit() -> None:
    assert job_options(spec({}, {}, max_dirty_rows=None), {}).job == {"maxDirtyRows": "unlimited"}
    assert job_options(spec({}, {}, max_dirty_rows=7), {}).job == {"maxDirtyRows": 7}
    assert job_options(spec({}, {}, max_dirty_rows=None, max_dirty_fraction=0.5), {}).job == {
        "maxDirtyFraction": 0.5
    }


def test_references_are_resolved_where_a_connector_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert str(found) == "disk full\nof everything"
    assert own_error(ValueError("nothing of ours")) is None


@pytest.mark.parametrize(
    ("connector", "scheme"), [("postgresql", "postgresql"), ("mysql", "mysql"), ("mysql", "jdbc:mysql")]
)
def test_a_transfer_to_more_hosts_than_it_reads_is_spread_over_them(connector: str, scheme: str) -> None:
    """Two hosts in turn, over two Spark tasks: dealt in turn, each task would load one host alone."""
    targets = tuple(
        EndpointPart({"dbtable": f"t{number}"}, (f"{scheme}://u:p@db{number % 2}.example/shop",))
        for number in range(8)
    )
    wanted = TransferSpec(
        Endpoint("generator", {"rows": "8000"}), Endpoint(connector, {}, parts=targets),
        channels=2,
    )  # fmt: skip
    with ExitStack() as held:
        opened = open_transfer(job_options(wanted, {}), 2, held)
    assert [task.writer_mark for task in opened.plan.tasks] == ["db0.example", "db1.example"] * 4
    for group in opened.plan.groups:
        assert Counter(task.writer_mark for task in group.tasks) == {"db0.example": 2, "db1.example": 2}
