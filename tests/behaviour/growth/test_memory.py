"""The memory of one large value: peaks of processes that copy one row, beside one that copies a small one."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors.files.formats.parquet import RowGroupEncoder
from spark_channel.errors import TargetError
from tests.connectors.files.helpers import read, write
from tests.connectors.iceberg.helpers import create, options_of, shop
from tests.servers.mariadb import MariadbServer

pytestmark = pytest.mark.full

_MIB = 1 << 20
_JOB = (
    "import json, sys; from spark_channel import transfer; source, target = map(json.loads, sys.argv[1:]); "
    "transfer(None, source, target, channels=1); "
    "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
)


_DOCUMENT = json.dumps({"text": "a line\nand another"}) + "\n"
Targets = Callable[[int], dict[str, Any]]
"""The options of a target for a value of so many MiB."""


def _peak(folder: Path, made: Targets, size: int) -> int:
    """Bytes of a process that copies a document of `size` MiB from SQLite."""
    path = folder / f"{size}.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE s (id INTEGER PRIMARY KEY, v TEXT)")
        text = _DOCUMENT * (size * _MIB // len(_DOCUMENT))
        connection.execute("INSERT INTO s VALUES (1, ?)", (text,))
    source = {"reader": "sqlite", "path": str(path), "dbtable": "s"}
    done = subprocess.run(
        [sys.executable, "-c", _JOB, json.dumps(source), json.dumps(made(size))],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout.splitlines()[-1]) * 1024


def _iceberg(folder: Path, catalog: Any, size: int) -> dict[str, Any]:
    columns = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
    create(catalog, f"shop.t{size}", columns)
    return {"writer": "iceberg", **options_of(folder, f"shop.t{size}")}


def _mariadb(server: MariadbServer, size: int) -> dict[str, Any]:
    server.sql(
        f"CREATE OR REPLACE DATABASE long_{size}; "
        f"CREATE TABLE long_{size}.t (id bigint, v longtext); SET GLOBAL max_allowed_packet = 1 << 30"
    )
    login = {"user": server.user, "password": server.password, "dbtable": "t"}
    return {"url": f"mysql://127.0.0.1:{server.port}/long_{size}", **login}


def _targets(form: str, folder: Path, request: pytest.FixtureRequest, held: ExitStack) -> Targets:
    if form == "iceberg":
        (folder / form).mkdir()
        return partial(_iceberg, folder / form, held.enter_context(shop(folder / form)))
    if form == "mariadb":
        return partial(_mariadb, request.getfixturevalue("mariadb_server"))
    if form == "postgresql":
        login = request.getfixturevalue("postgres_server").login
        return lambda size: {**login, "dbtable": f"long_{size}"}
    named = {"dbtable": "t"} if form in ("sqlite", "duckdb") else {}
    return lambda size: {"writer": form, "path": str(folder / f"out-{size}"), **named}


_NOISE = 16 * _MIB
_TIMES = {"duckdb": 5, "mariadb": 3}
"""Where it is not four. A thread of DuckDB may keep one copy that it freed until the transaction has ended."""


@pytest.mark.parametrize(
    "form",
    [
        *("parquet", "csv", "json", "delta", "iceberg"),
        *("sqlite", "duckdb", "postgresql", "mariadb"),
    ],
)
def test_one_value_takes_few_times_its_size(
    tmp_path: Path, form: str, request: pytest.FixtureRequest
) -> None:
    with ExitStack() as held:
        made = _targets(form, tmp_path, request, held)
        more = _peak(tmp_path, made, 64) - _peak(tmp_path, made, 1)
    assert more < _TIMES.get(form, 4) * 63 * _MIB + _NOISE


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("escape", ['"', "\\"])
def test_a_long_value_is_written_as_a_short_one_is(tmp_path: Path, form: str, escape: str) -> None:
    """Beside short ones and NULL, with what must be escaped on the ends of its chunks."""
    options: dict[str, Any] = {"escape": escape} if form == "csv" else {}
    odd = 'a"b\\c\r\nd\te\x01\u00e9\u20ac\U0001f600,'
    texts = ["short", odd * (2 * _MIB // len(odd)), None, "é" * _MIB + "x", '"' * (2 * _MIB), ""]
    rows = pa.table({"v": pa.array(texts), "n": pa.array([1, None, 3, 4, 5, 6])})
    if form == "json":
        rows = rows.append_column(
            "b", pa.array([b"x", None, b"y", bytes(range(256)) * 8192, b"", None], pa.binary())
        )
    write(form, tmp_path, rows, **options)
    found = read(form, tmp_path, **options)
    assert found.to_pydict() == rows.to_pydict()


def test_orc_refuses_a_text_that_its_footer_would_repeat(tmp_path: Path) -> None:
    fits = pa.table({"a": ["x" * (8 * _MIB)], "b": [["y" * (8 * _MIB)]], "c": [b"z" * (40 * _MIB)]})
    write("orc", tmp_path / "fits", fits)
    assert read("orc", tmp_path / "fits").equals(fits)
    longer = fits.set_column(1, "b", pa.array([["y" * (8 * _MIB + 1)]]))
    with pytest.raises(
        TargetError, match=r"column 'b' holds a text of 8388609 bytes.*Write Parquet"
    ):
        write("orc", tmp_path / "longer", longer)


def test_only_columns_of_long_values_lose_their_statistics(tmp_path: Path) -> None:
    def written(text: str, rows: int) -> list[bool]:
        table = pa.table(
            {"id": pa.array(range(rows)), "v": pa.array([text] * rows), "n": pa.array([[1]] * rows)}
        )
        path = tmp_path / "x.parquet"
        with path.open("wb") as opened:
            encoder = RowGroupEncoder(opened, table.schema, 1_000, 1 << 30)
            for batch in table.to_batches():
                encoder.write(batch)
            encoder.finish()
        assert pq.read_table(path).equals(table)
        group = pq.read_metadata(path).row_group(0)
        return [group.column(number).is_stats_set for number in range(2)]

    assert written("a" * 100, 5) == [True, True]
    assert written("a" * (2 * _MIB), 1) == [True, False]


_LIMITED = (
    "import sys; import pyarrow as pa; from spark_channel import transfer; rows, path = sys.argv[1:]; "
    "transfer(None, {'reader': 'generator', 'rows': rows}, {'writer': 'parquet', 'path': path, "
    "'rowGroupBytes': '4MiB', 'capacityBytes': '4MiB'}, channels=1, rows_per_second='100M'); "
    "print(pa.default_memory_pool().max_memory())"
)
_ENCODED = (
    "import sys; import pyarrow as pa; "
    "from spark_channel.connectors.files.formats.parquet import RowGroupEncoder; "
    "rows = pa.record_batch({'n': range(1_000_000)}); "
    "encoder = RowGroupEncoder(pa.OSFile(sys.argv[1], 'wb'), rows.schema, 1 << 20, 1 << 30); "
    "encoder.write(rows); encoder.finish(); "
    "print(pa.default_memory_pool().max_memory())"
)


def _most_arrow_bytes(program: str, *arguments: object) -> int:
    """Bytes that Arrow had at once in a process of `program`."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout.splitlines()[-1])


def test_a_column_of_distinct_numbers_takes_no_table_of_a_dictionary_that_is_given_up(
    tmp_path: Path,
) -> None:
    assert _most_arrow_bytes(_ENCODED, tmp_path / "x.parquet") < 20_000_000


def test_a_limited_job_takes_no_more_for_more_rows(tmp_path: Path) -> None:
    """Above one row group, which Parquet's writer takes whole."""
    few, many = (
        _most_arrow_bytes(_LIMITED, rows, tmp_path / str(rows)) for rows in (2_000_000, 10_000_000)
    )
    assert many < 1.1 * few + 4 * _MIB
