"""The same input in other splits, blocks, limits and engines: the same rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import orc
from pyspark.sql import SparkSession

import spark_channel
from spark_channel.connectors import FetchSize
from spark_channel.errors import ChannelError
from tests.behaviour.differential import inputs, judges
from tests.behaviour.differential.inputs import BINARY, CSV_ODD, JSON_ODD, MODERN, PLAIN
from tests.behaviour.differential.lengths import either_length, examples
from tests.behaviour.differential.tables import Found, difference, from_arrow
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

SHAPES: tuple[tuple[int, FetchSize | None, str | None], ...] = (
    (1, None, None),
    (2, None, "1"),
    (7, None, "40"),
    (7, FetchSize(rows=1), "1KiB"),
    (1, FetchSize(nbytes=1024), None),
    (3, FetchSize(rows=10_000), "300"),
)
"""Splits, fetch and `splitBytes`: the first is the plain read that the others are compared with."""


def outcomes(options: dict[str, Any], *, files: bool) -> list[Found | str]:
    found: list[Found | str] = []
    for splits, fetch, split_bytes in SHAPES:
        more = {"splitBytes": split_bytes} if files and split_bytes else {}
        try:
            found.append(judges.channel({**options, **more}, splits=splits, fetch=fetch))
        except ChannelError:
            found.append("refused")
    return found


def assert_same(options: dict[str, Any], *, files: bool = True) -> None:
    """A refusal in one shape is a refusal in all."""
    first, *others = outcomes(options, files=files)
    for shape, other in zip(SHAPES[1:], others, strict=True):
        if isinstance(first, str) or isinstance(other, str):
            assert first == other, f"{shape}: {str(first)[:200]} / {str(other)[:200]}"
        else:
            differs = difference(other, first, ordered=files)
            assert differs is None, f"{shape}: {differs}"


# Text


def repeated(data: bytes, times: int) -> bytes:
    """A file of many copies of its rows, so that an edge of a block or split falls on each of them."""
    head, _, body = data.partition(b"\n")
    return head + b"\n" + body * times


@pytest.mark.parametrize("form", ["csv", "json"])
def test_odd_text_is_the_same_in_pieces_of_any_size(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    for odd in CSV_ODD if form == "csv" else JSON_ODD:
        path.write_bytes(odd.data)
        assert_same({"reader": form, "path": str(path)})


@either_length
def test_csv_is_the_same_in_pieces_of_any_size(tmp_path: Path, length: str) -> None:
    path = tmp_path / "a.csv"

    @examples(length, quick=30)
    @given(inputs.csv_texts(), st.booleans(), st.booleans(), st.integers(1, 3))
    def check(text: str, multi_line: bool, typed: bool, times: int) -> None:
        path.write_bytes(repeated(text.encode(), times))
        options = {"multiLine": str(multi_line).lower(), "inferSchema": str(typed).lower()}
        assert_same({"reader": "csv", "path": str(path), **options})

    check()


@either_length
def test_any_text_is_the_same_in_pieces_of_any_size(tmp_path: Path, length: str) -> None:
    """No CSV file at all, most of them: refused, or the same rows."""
    path = tmp_path / "a.csv"
    pieces = st.sampled_from(
        ["a", ",", '"', "\n", "\r\n", "\r", " ", "\t", "\\", "#", "é", "\ufeff", "1"]
    )

    @examples(length, quick=60)
    @given(st.lists(pieces, max_size=40).map("".join), st.booleans(), st.sampled_from(["", "#"]))
    def check(text: str, header: bool, comment: str) -> None:
        path.write_bytes(text.encode())
        options = {"header": str(header).lower(), "comment": comment, "inferSchema": "false"}
        assert_same({"reader": "csv", "path": str(path), **options})

    check()


@either_length
def test_json_is_the_same_in_pieces_of_any_size(tmp_path: Path, length: str) -> None:
    path = tmp_path / "a.json"
    lines = st.sampled_from(inputs.ODD_LINES)

    @examples(length, quick=40)
    @given(
        st.one_of(
            inputs.json_texts().map(lambda made: made[1]),
            st.lists(lines, max_size=12).map("\n".join),
        )
    )
    def check(text: str) -> None:
        path.write_bytes(text.encode())
        assert_same({"reader": "json", "path": str(path)})

    check()


# Columnar files


def _write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "parquet": lambda table, path: pq.write_table(table, path, row_group_size=3),
    "orc": lambda table, path: orc.write_table(table, path, stripe_size=1024, batch_size=2),
    "arrow": _write_arrow,
}


@pytest.mark.parametrize("form", list(WRITERS))
@either_length
def test_columnar_files_are_the_same_in_pieces_of_any_size(
    form: str, tmp_path: Path, length: str
) -> None:
    path = tmp_path / f"a.{form}"
    kinds = [*(MODERN if form == "orc" else PLAIN), BINARY]

    @examples(length, quick=8)
    @given(inputs.tables(kinds, deep=True, names=("a", "B", "é", "c d"), rows=12))
    def check(table: pa.Table) -> None:
        WRITERS[form](table, path)
        assert_same({"reader": form, "path": str(path)})
        differs = difference(judges.channel({"reader": form, "path": str(path)}), from_arrow(table))
        assert differs is None, differs

    check()


# Engines and limits


def copied(
    spark: SparkSession | None, options: dict[str, Any], target: Path, limit: int | None = None
) -> pa.Table:
    """What a transfer writes as Parquet: through Spark, or here without a session."""
    spark_channel.transfer(
        spark,
        options,
        {"name": "parquet", "path": str(target)},
        channels=2,
        rows_per_second=limit,
    )
    return judges.channel_table({"reader": "parquet", "path": str(target)})


TABLE = pa.table(
    {
        "id": pa.array(range(200), pa.int64()),
        "text": pa.array([inputs.ODD_TEXTS[n % len(inputs.ODD_TEXTS)] for n in range(200)]),
        "amount": pa.array([None if n % 7 == 0 else n / 3 for n in range(200)], pa.float64()),
        "day": pa.array([n * 17 for n in range(200)], pa.int32()).cast(pa.date32()),
    }
)


@pytest.fixture(
    params=["parquet", "orc", "arrow", "csv", "json", "sqlite", "duckdb", "postgresql", "mysql"]
)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The same 200 rows in each system, with odd texts, as options of a reader."""
    name = request.param
    given = tmp_path / "given.arrow"
    _write_arrow(TABLE, given)
    if name in ("parquet", "orc", "arrow", "csv", "json"):
        options: dict[str, Any] = {"name": name, "path": str(tmp_path / "source")}
        if name == "csv":
            options["nullValue"] = "\\0"
    elif name in ("sqlite", "duckdb"):
        options = {"name": name, "url": f"{name}:{tmp_path / 'source.db'}", "dbtable": "same"}
    else:
        fixture = {"postgresql": "postgres_server", "mysql": "mariadb_server"}[name]
        server: PostgresServer | MariadbServer = request.getfixturevalue(fixture)
        options = {"name": name, **server.login, "dbtable": "same_rows"}
    spark_channel.transfer(
        None, {"name": "arrow", "path": str(given)}, options, mode="overwrite", channels=1
    )
    if name == "csv":
        options["multiLine"] = "true"
    return options


def assert_all_rows(table: pa.Table) -> None:
    differs = difference(from_arrow(table), from_arrow(TABLE), ordered=False)
    assert differs is None, differs


def test_the_engine_and_the_limit_change_no_row(source: dict[str, Any], tmp_path: Path) -> None:
    assert_all_rows(copied(None, source, tmp_path / "copied"))
    assert_all_rows(copied(None, source, tmp_path / "limited", 1_000_000))
    options = {("reader" if key == "name" else key): value for key, value in source.items()}
    assert_same(options, files="path" in source)


@pytest.mark.spark
@pytest.mark.newest
def test_spark_changes_no_row(spark: SparkSession, source: dict[str, Any], tmp_path: Path) -> None:
    assert_all_rows(copied(spark, source, tmp_path / "copied"))
    options = {("reader" if key == "name" else key): value for key, value in source.items()}
    assert_all_rows(spark.read.format("channel").options(**options).load().toArrow())
