"""hdfsreader and hdfswriter as whole jobs, on a NameNode and a DataNode of Hadoop."""

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest

pytest.importorskip("hdfs_native")

from spark_channel.connectors.hdfs import HdfsClient
from tests.datax.ran import ran
from tests.datax.small_jobs import make_job
from tests.servers.hdfs import start_hdfs

pytestmark = pytest.mark.every_server
WAREHOUSE = "/user/hive/warehouse/ods.db"
COLUMNS = [
    {"name": "id", "type": "BIGINT"},
    {"name": "name", "type": "VARCHAR(20)"},
    {"name": "price", "type": "DECIMAL(10,2)"},
    {"name": "score", "type": "DOUBLE"},
    {"name": "ok", "type": "BOOLEAN"},
    {"name": "placed", "type": "STRING"},
    {"name": "day", "type": "DATE"},
]
SOURCE = [
    {"index": 0, "type": "long"},
    {"index": 1, "type": "string"},
    {"index": 2, "type": "string"},
    {"index": 3, "type": "double"},
    {"index": 4, "type": "boolean"},
    {"index": 5, "type": "date"},
    {"index": 6, "type": "date"},
]
ROWS = '1|ada, "a"|12.50|0.5|true|2024-01-31 10:00:05|2024-01-31\n2|\\N|\\N|\\N|\\N|\\N|\\N\n'


@pytest.fixture(scope="module")
def name_node() -> Iterator[str]:
    with start_hdfs() as port:
        yield f"hdfs://127.0.0.1:{port}"


def put(name_node: str, path: str, data: bytes) -> None:
    client = HdfsClient(name_node)
    client.make(path.rpartition("/")[0])
    with client.open_write(path) as file:
        file.write(data)


def held(name_node: str, folder: str) -> list[bytes]:
    """What a program that knows nothing of us finds in a folder of HDFS."""
    client, found = HdfsClient(name_node), []
    for entry in client.entries(folder):
        if not entry.is_folder and not entry.path.rpartition("/")[2].startswith(("_", ".")):
            with client.open_read(entry.path) as file:
                found.append(file.read())
    return found


def writes(tmp_path: Path, name_node: str, kind: str, day: str, **more: Any) -> dict[str, Any]:
    (tmp_path / "in.txt").write_text(ROWS)
    return make_job(
        "txtfilereader",
        {
            "path": [str(tmp_path / "in.txt")],
            "fieldDelimiter": "|",
            "column": SOURCE,
            "csvReaderConfig": {"useTextQualifier": False},
            "nullFormat": "\\N",
        },
        "hdfswriter",
        {
            "defaultFS": name_node,
            "fileType": kind,
            "path": f"{WAREHOUSE}/{kind}/dt={day}",
            "fileName": "orders",
            "column": COLUMNS,
            "writeMode": "append",
            "fieldDelimiter": "\u0001",
            "compress": {"text": "gzip", "orc": "SNAPPY", "parquet": "SNAPPY"}[kind],
            **more,
        },
    )


def lines(
    tmp_path: Path, name_node: str, path: Any, kind: str, column: Any, **more: Any
) -> list[str]:
    """The rows that hdfsreader reads, as txtfilewriter writes them."""
    reader = {
        "defaultFS": name_node,
        "path": path,
        "fileType": kind,
        "column": column,
        "fieldDelimiter": "\u0001",
        **more,
    }
    target = {
        "path": str(tmp_path / "out"),
        "fileName": "rows",
        "writeMode": "truncate",
        "fieldDelimiter": "|",
    }
    report = ran(tmp_path, make_job("hdfsreader", reader, "txtfilewriter", target))
    assert report["rows_refused"] == 0
    return sorted(
        line
        for path in (tmp_path / "out").glob("rows__*")
        for line in path.read_text().splitlines()
    )


@pytest.mark.parametrize("kind", ["text", "orc", "parquet"])
def test_rows_of_a_table_of_hive_go_in_and_out(kind: str, name_node: str, tmp_path: Path) -> None:
    assert ran(tmp_path, writes(tmp_path, name_node, kind, "2024-01-31"))["rows_written"] == 2
    (data,) = held(name_node, f"{WAREHOUSE}/{kind}/dt=2024-01-31")
    if kind == "text":
        assert gzip.decompress(data).decode().split("\n") == [
            '1\u0001ada, "a"\u000112.50\u00010.5\u0001true\u00012024-01-31 10:00:05\u00012024-01-31',
            "\u0001".join(["2", *[""] * 6]),
            "",
        ]
    else:
        table = (pyarrow.orc.read_table if kind == "orc" else pyarrow.parquet.read_table)(
            io.BytesIO(data)
        )
        assert [str(field.type) for field in table.schema] == [
            "int64",
            "string",
            "decimal128(10, 2)",
            "double",
            "bool",
            "string",
            "date32[day]",
        ]
        assert [value["placed"] for value in table.to_pylist()] == ["2024-01-31 10:00:05", None]
    column = [
        {"index": 1, "type": "string"},
        {"index": 0, "type": "long"},
        {"value": "eu", "type": "string"},
        {"index": 3, "type": "double"},
        {"index": 4, "type": "boolean"},
        {"index": 6, "type": "date"},
    ]
    more = {"nullFormat": "", "compress": "gzip", "csvReaderConfig": {"useTextQualifier": False}}
    known = more if kind == "text" else {}
    rows = ['ada, "a"|1|eu|0.5|true|2024-01-31 00:00:00', "null|2|eu|null|null|null"]
    one_day = f"{WAREHOUSE}/{kind}/dt=2024-01-3?"
    assert lines(tmp_path, name_node, one_day, kind, column, **known) == rows
    if kind == "orc":
        put(name_node, f"{WAREHOUSE}/orc/dt=2024-02-01/000000_0", data)
        assert lines(tmp_path, name_node, [f"{WAREHOUSE}/orc/*"], kind, column) == sorted(2 * rows)
        every = [
            row.split("|") for row in lines(tmp_path, name_node, f"{WAREHOUSE}/orc", kind, ["*"])
        ]
        assert {len(row) for row in every} == {len(COLUMNS)}, (
            "a folder dt=... is not a column of the files"
        )


def test_files_that_hive_wrote(name_node: str, tmp_path: Path) -> None:
    """Without a suffix, beside markers, with names of columns that Hive generated, and an empty file."""
    table = pa.table({"_col0": pa.array([7, None], pa.int32()), "_col1": ["x", "y"]})
    orc = io.BytesIO()
    pyarrow.orc.write_table(table, orc)
    for name, data in {
        "text/000000_0": b"7\x01x\n\\N\x01y\n",
        "text/000001_0": b"",
        "text/_SUCCESS": b"",
        "text/.hive-staging_1/000000_0": b"broken",
        "orc/000000_0": orc.getvalue(),
        "orc/_SUCCESS": b"",
    }.items():
        put(name_node, f"/hive/{name}", data)
    column = [{"index": 0, "type": "long"}, {"index": 1, "type": "string"}]
    for kind in ("text", "orc"):
        for path in (f"/hive/{kind}", f"/hive/{kind}/*", f"/hive/{kind}/00000?_0"):
            assert lines(tmp_path, name_node, path, kind, column) == ["7|x", "null|y"], (kind, path)
