"""How a job commits: in its file, and on the command line."""

from typing import Any

import pytest

from spark_channel.datax import load_job
from spark_channel.datax.commit import transaction_of_job
from spark_channel.errors import JobFileError, OptionError

DATABASE = {"column": ["a", "b"], "connection": [{"jdbcUrl": "jdbc:mysql://h/x", "table": ["t"]}]}


@pytest.mark.parametrize(
    ("text", "variables", "found"),
    [
        ("nightly:42", {}, ("nightly", 42)),
        ("nightly:2024-01-31", {}, ("nightly", 20240131)),
        ("a:b:20240131", {}, ("a:b", 20240131)),
        ("nightly", {"day": "2024-01-31", "table": "orders"}, ("nightly", 20240131)),
        ("nightly", {"day": "20240131", "dt": "2024-01-31"}, ("nightly", 20240131)),
        ("nightly:0", {"day": "2024-01-31"}, ("nightly", 0)),
    ],
)
def test_a_transaction_is_a_name_and_a_version(
    text: str, variables: dict[str, str], found: Any
) -> None:
    assert transaction_of_job(text, variables, "--txn") == found


@pytest.mark.parametrize(
    ("text", "variables", "message"),
    [
        (
            "nightly",
            {},
            "'--txn' got 'nightly' without a version, and none of the values of -p is a date",
        ),
        ("nightly", {"a": "2024-01-31", "b": "2024-02-01"}, "and several of the values"),
        ("nightly", {"a": "2024-02-31"}, "and none of the values"),
        ("nightly:x", {}, "'--txn' got 'nightly:x'; it takes NAME:VERSION"),
        (":3", {}, "it takes NAME:VERSION"),
        ("nightly:99999999999999999999", {}, "it takes NAME:VERSION"),
    ],
)
def test_another_text_is_refused(text: str, variables: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        transaction_of_job(text, variables, "--txn")


def test_a_file_and_the_command_line_say_how_a_job_commits(make_job: Any) -> None:
    job = make_job(
        writer="mysqlwriter",
        writes={**DATABASE, "preSql": ["truncate table @table"]},
        setting={"commit": "job", "txn": "nightly:${day}"},
    )
    options = load_job(job, {"day": "2024-01-31"}).spec.writer.options
    assert (options["commit"], options["txn"]) == ("job", "nightly:20240131")
    assert options["preSql"] == '["DELETE FROM t"]'
    assert "startSql" not in options
    said = load_job(job, {"day": "2024-01-31"}, commit="task", txn="x:1").spec.writer.options
    assert (said["commit"], said["txn"]) == ("task", "x:1")


def test_the_old_name_of_a_transaction_id_is_refused_with_the_new_one(make_job: Any) -> None:
    with pytest.raises(JobFileError, match=r'job\.setting\.transaction.*"txn"'):
        load_job(make_job(writer="mysqlwriter", setting={"transaction": "nightly:1"}))


def test_each_content_has_a_transaction_of_its_own(make_job: Any) -> None:
    job = make_job(writer="mysqlwriter", writes=DATABASE)
    job["job"]["content"] *= 2
    found = load_job(job, all_content=True, txn="x:1").specs
    assert [spec.writer.options["txn"] for spec in found] == ["x:1", "x#1:1"]


def test_all_at_once_allows_no_refused_row(make_job: Any) -> None:
    plain = load_job(make_job(writer="mysqlwriter", writes=DATABASE), commit="job")
    assert plain.spec.max_dirty_rows == 0
    assert any("one row that the target refuses ends the job" in text for text in plain.warnings)
    job = make_job(writer="mysqlwriter", writes=DATABASE, setting={"errorLimit": {"record": 3}})
    with pytest.raises(JobFileError, match=r"job\.setting\.errorLimit"):
        load_job(job, commit="job")
    assert load_job(job, commit="task").spec.max_dirty_rows == 3


@pytest.mark.parametrize("setting", [{"commit": "never"}, {"txn": "x"}])
def test_a_setting_that_is_neither_is_refused(make_job: Any, setting: dict[str, str]) -> None:
    with pytest.raises(JobFileError, match=r"job\.setting\.(commit|txn)"):
        load_job(make_job(writer="mysqlwriter", writes=DATABASE, setting=setting))
    with pytest.raises(OptionError, match="--commit"):
        load_job(make_job(), commit="never")


def test_what_spark_writes_has_no_transaction(make_job: Any) -> None:
    oracle = {
        "column": ["a"],
        "connection": [{"jdbcUrl": "jdbc:oracle:thin:@h:1521:x", "table": ["t"]}],
    }
    with pytest.raises(JobFileError, match="which Spark writes"):
        load_job(make_job(writer="oraclewriter", writes=oracle), txn="x:1")
