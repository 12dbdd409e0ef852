import pickle

import pytest

from spark_channel.errors import OptionError
from spark_channel.planning import (
    Endpoint,
    EndpointOverrides,
    Split,
    TransferSpec,
    advise,
    deal,
    plan,
)

READER = Endpoint("postgresql", {"url": "postgresql://db/shop", "password": "hunter2"})
WRITER = Endpoint("parquet", {"path": "/data"})


def test_a_plan_goes_from_splits_to_groups() -> None:
    spec = TransferSpec(READER, WRITER, ("t",), channels=4, channels_per_task=2)
    splits = [Split({"n": n}, rows=10 + n, nbytes=100) for n in range(advise(spec, parallelism=1))]
    made = plan(spec, splits, parallelism=1)
    assert len(splits) == 20
    assert made.channels == 4
    assert [(len(group.tasks), group.channels) for group in made.groups] == [(10, 2), (10, 2)]
    assert [task.id for task in made.tasks] == list(range(20))
    assert {task.transformers for task in made.tasks} == {("t",)}
    assert made.rows == sum(range(10, 30))
    assert made.nbytes == 2000


def test_one_unknown_estimate_makes_the_total_unknown() -> None:
    made = plan(TransferSpec(READER, WRITER), [Split(rows=1, nbytes=1), Split()], parallelism=2)
    assert made.rows is None
    assert made.nbytes is None


def test_without_limits_and_channels_the_sessions_parallelism_counts() -> None:
    assert plan(TransferSpec(READER, WRITER), [Split()] * 9, parallelism=6).channels == 6


def test_given_tasks_are_dealt_to_no_more_channels_than_are_allowed() -> None:
    spec = TransferSpec(READER, WRITER, channels=8, channels_per_task=1)
    tasks = plan(spec, [Split({"n": n}, rows=1) for n in range(6)], parallelism=1).tasks
    assert deal(spec, tasks, parallelism=1).channels == 6
    few = deal(spec, tasks, parallelism=1, most=2)
    assert (few.channels, [len(group.tasks) for group in few.groups]) == (2, [3, 3])


def test_an_empty_source_is_a_plan_of_nothing() -> None:
    made = plan(TransferSpec(READER, WRITER, channels=3), [], parallelism=2)
    assert (made.channels, made.groups, made.rows, made.nbytes) == (0, (), 0, 0)


def test_parts_and_marks_reach_the_tasks() -> None:
    made = plan(
        TransferSpec(READER, WRITER, channels=1),
        [Split(), Split()],
        parallelism=1,
        writer_parts=["t_0", "t_1"],
        reader_marks=["h", "i"],
        writer_marks=["j", None],
    )
    seen = [(task.writer_part, task.reader_mark, task.writer_mark) for task in made.tasks]
    assert seen == [("t_0", "h", "j"), ("t_1", "i", None)]


def test_a_plan_travels_to_executors() -> None:
    made = plan(TransferSpec(READER, WRITER, channels=2), [Split({"n": 1})] * 3, parallelism=1)
    assert pickle.loads(pickle.dumps(made)) == made


def test_secrets_are_not_in_a_repr() -> None:
    spec = TransferSpec(
        Endpoint(
            "mysql",
            {
                "password": "hunter2",
                "sharedLimitToken": "t0ken",
                "url": "mysql://root:pa55@db/shop?x=1&sslpassword=s3cret",
                "dbtable": "orders",
            },
        ),
        WRITER,
    )
    shown = repr(spec)
    assert not any(secret in shown for secret in ("hunter2", "t0ken", "pa55", "s3cret"))
    assert "root:***@db/shop" in shown
    assert "dbtable='orders'" in shown
    assert "x=1" in shown


def test_an_endpoint_is_a_connector_or_a_spark_format() -> None:
    connector = Endpoint.parse("reader", {"name": "postgresql", "dbtable": "t"})
    assert (connector.name, connector.options, connector.spark_format) == (
        "postgresql",
        {"dbtable": "t"},
        False,
    )
    assert Endpoint.parse("writer", {"format": "hive"}).spark_format
    assert Endpoint.parse("reader", {"reader": "csv"}).name == "csv"
    assert Endpoint.parse("reader", {"path": "x.csv"}) == Endpoint("", {"path": "x.csv"})


@pytest.mark.parametrize("bad", [{"name": "a", "format": "b"}, {"name": ""}, {"format": 3}])
def test_an_endpoint_that_names_itself_wrongly_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        Endpoint.parse("reader", bad)


def test_an_end_of_several_parts_resolves_to_one_end_each() -> None:
    end = Endpoint(
        "mysql",
        {"user": "u", "password": "hunter2"},
        parts=(
            EndpointOverrides({"dbtable": "t_0"}, ("jdbc:mysql://a/x",)),
            EndpointOverrides({"dbtable": "t_1"}, ("jdbc:mysql://r:pw@b/x", "jdbc:mysql://c/x")),
        ),
    )
    first, second = end.resolve(lambda urls: urls[-1])
    assert first.options == {
        "user": "u",
        "password": "hunter2",
        "dbtable": "t_0",
        "url": "jdbc:mysql://a/x",
    }
    assert second.options["url"] == "jdbc:mysql://c/x"
    assert second.parts == ()
    assert "hunter2" not in repr(end)
    assert ":pw@" not in repr(end)
    assert READER.resolve(lambda urls: urls[0]) == (READER,)


def test_splits_per_channel_are_what_the_user_says() -> None:
    assert (
        advise(TransferSpec(READER, WRITER, channels=4, splits_per_channel=3), parallelism=1) == 12
    )
