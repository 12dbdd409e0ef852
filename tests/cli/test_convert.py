"""DataX jobs as one file of a replication."""

import json
from dataclasses import replace
from typing import Any

import pytest

from spark_channel.cli.convert import convert_jobs
from spark_channel.datax import load_job
from spark_channel.planning import Endpoint, TransferSpec
from spark_channel.replication.config import parse_replication


def job(
    table: str = "orders",
    *,
    url: str = "jdbc:mysql://h:3306/shop",
    reader: dict[str, Any] | None = None,
    writer: dict[str, Any] | None = None,
    **content: Any,
) -> TransferSpec:
    made = {
        "reader": {
            "name": "mysqlreader",
            "parameter": {
                "username": "etl",
                "password": "hunter2",
                "column": ["id", "name"],
                "connection": [{"table": [table], "jdbcUrl": [url]}],
                **(reader or {}),
            },
        },
        "writer": {
            "name": "postgresqlwriter",
            "parameter": {
                "username": "dw",
                "password": "hunter2",
                "column": ["id", "name"],
                "preSql": [f"TRUNCATE TABLE marts.{table};"],
                "connection": [{"table": [f"marts.{table}"], "jdbcUrl": "jdbc:postgresql://w/dw"}],
                **(writer or {}),
            },
        },
        **content,
    }
    text = json.dumps(
        {"job": {"setting": {"speed": {"record": 5000, "byte": 1048576}}, "content": [made]}}
    )
    return load_job(text).spec


def into(table: str) -> dict[str, Any]:
    """Parameters of a writer that replaces the rows of `table`."""
    place = {"table": [table], "jdbcUrl": "jdbc:postgresql://w/dw"}
    return {"connection": [place], "preSql": [f"TRUNCATE TABLE {table}"]}


def test_what_a_job_says_of_its_ends_is_kept() -> None:
    """Parameters of urls, and the name that PostgreSQL has for a table without quotes."""
    url = "jdbc:postgresql://w/dw?sslmode=require&user=x&password=hunter2"
    place = {"table": ["Marts.T_Orders"], "jdbcUrl": url}
    writer = {"connection": [place], "preSql": ["TRUNCATE TABLE Marts.T_Orders"]}
    made = convert_jobs([("a.json", job(url="jdbc:mysql://h/shop?useSSL=true", writer=writer))])
    found = parse_replication(made.text)
    assert found.source.url == "jdbc:mysql://h/shop?useSSL=true"
    assert found.target.url == "jdbc:postgresql://w/dw?sslmode=require"
    assert found.streams["shop.orders"].object == "marts.t_orders"
    spec = replace(job(), max_dirty_rows=10)
    assert "errorLimit is left out" in convert_jobs([("a.json", spec)]).notes[0][1]


def test_no_secret_of_a_source_is_in_the_file() -> None:
    spec = job()
    options = {**spec.reader.options, "url": "postgresql://h/shop", "sslPassword": "hunter2"}
    made = convert_jobs([("a.json", replace(spec, reader=Endpoint("postgresql", options)))])
    assert not made.refused
    assert "${env:SOURCE_SSLPASSWORD}" in made.text
    assert "hunter2" not in made.text


def test_jobs_become_streams() -> None:
    jobs = [
        job(),
        job(
            "items",
            reader={"where": "id > 3", "splitPk": "id", "column": ["*"]},
            writer={"column": ["*"]},
        ),
    ]
    made = convert_jobs([(str(number), spec) for number, spec in enumerate(jobs)])
    assert made.refused == []
    assert "hunter2" not in made.text
    found = parse_replication(made.text)
    assert found.source.options() == {
        "url": "jdbc:mysql://h:3306/shop",
        "user": "etl",
        "password": "${env:SOURCE_PASSWORD}",
        "tinyInt1IsBit": "false",  # as DataX reads them
        "zeroDates": "null",
        "wideDecimals": "text",
    }
    assert found.limit.rows_per_second == 5000
    assert found.limit.bytes_per_second == 1 << 20
    orders, items = found.streams["shop.orders"], found.streams["shop.items"]
    assert orders.object == "marts.orders"
    assert orders.source_options == {"columns": ["id", "name"]}
    assert (items.where, items.source_options) == ("id > 3", {"partitionColumn": "id"})


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (job(writer={"preSql": []}), "adds its rows"),
        (job(writer={"preSql": ["TRUNCATE TABLE other"]}), "adds its rows"),
        (job(writer={"postSql": ["ANALYZE"]}), "its writer has 'postsql'"),
        (job(writer={"column": ["id", "title"]}), "renames or changes columns"),
        (job(url="jdbc:mysql://other/shop"), "another source or target"),
        (job(url="jdbc:mysql://h:3306/shop?zeroDateTimeBehavior=round"), "another source"),
        (job("items", reader={"session": ["SET time_zone = '+01:00'"]}), "another source"),
        (job(), "another job copies shop.orders"),
        (job("old", writer=into("MARTS.Orders")), "another job replaces the rows of marts.orders"),
        (job("old", writer=into('marts."a.b"')), "has a dot or a brace in a name"),
        (
            job(
                reader={
                    "connection": [{"querySql": ["SELECT 1"], "jdbcUrl": ["jdbc:mysql://h/shop"]}]
                }
            ),
            "names no table",
        ),
    ],
)
def test_what_is_no_stream_is_said(spec: TransferSpec, why: str) -> None:
    made = convert_jobs([("first.json", job()), ("second.json", spec)])
    assert [name for name, _ in made.refused] == ["second.json"]
    assert why in made.refused[0][1]
    assert list(parse_replication(made.text).streams) == ["shop.orders"]


def test_nothing_that_fits_is_no_file() -> None:
    assert convert_jobs([("a.json", job(writer={"preSql": []}))]).text == ""
