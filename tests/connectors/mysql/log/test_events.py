"""Logs that servers from MySQL 5.0 to 8.0 have written, decoded as `mariadb-binlog` prints them."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from struct import unpack_from
from uuid import UUID

import pyarrow as pa
import pytest

from spark_channel.connectors.mysql.log.decoder import ChangeDecoder
from spark_channel.connectors.mysql.log.events import (
    DAMAGE,
    Event,
    Kind,
    TableMap,
    events,
    packed_integer,
    statement_of,
    table_map,
)
from spark_channel.connectors.mysql.log.fields import LogColumn
from spark_channel.connectors.mysql.log.position import MysqlGtids
from spark_channel.connectors.mysql.log.rows import RowCutter, field_of
from spark_channel.connectors.mysql.log.table import FollowedTable
from spark_channel.connectors.sql.catalog import ReadColumn
from spark_channel.errors import SourceError
from tests.servers.installed import installed

MYSQL_8 = "std_data/mdev35643_mysql_80_binlog.000001"
WHOLE = [
    "std_data/binlog_savepoint.000001",
    "std_data/binlog_transaction.000001",
    "std_data/bug33029-slave-relay-bin.000001",
    "std_data/mariadb-5.5-binlog.000001",
    "std_data/mdev29078-mysql-bin.000001",
    "std_data/mdev6020-mysql-bin.000001",
    "std_data/rpl/master-bin-seq_10.3.36.000001",
    "std_data/rpl/mysql-5.7.11-stm-temporal-round-binlog.000001",
    "std_data/rpl/mysql-8.0.13-stm-temporal-round-binlog.000001",
    "suite/binlog/std_data/ver_5_1_23.001",
    "suite/binlog/std_data/ver_trunk_row_v2.001",
]
"""Those that the judge reads to their ends. Logs of servers before 5.0, which have no FORMAT, are left out."""
DAMAGED = [
    "std_data/bug11747416_32228_binlog.000001",
    "std_data/corrupt-relay-bin.000624",
    "std_data/mdev-39404-binlog.000001",
    "suite/binlog/std_data/invalid_row_v2_tag.001",
]
_AT = re.compile(rb"^# at (\d+)$", re.MULTILINE)
_DECLARED = {1: "tinyint", 3: "int", 8: "bigint", 15: "varchar", 254: "char"}
Columns = dict[str, tuple[str, pa.DataType]]
_ONE = "00000000-0000-0000-0000-000000000001"


def packets(path: Path) -> Iterator[bytes]:
    """The events of a file, as a server sends them: without the flag that says that the file is being written."""
    data = path.read_bytes()
    assert data[:4] == b"\xfebin"
    at = 4
    while at < len(data):
        (size,) = unpack_from("<I", data, at + 9)
        packet = bytearray(data[at : at + size])
        if packet[4] == Kind.FORMAT:
            packet[17] &= 0xFE
        yield bytes(packet)
        at += size


def judged(path: Path) -> tuple[bytes, str]:
    """What `mariadb-binlog` prints of a file, and why it does not go on."""
    program = shutil.which("mariadb-binlog")
    assert program is not None, "run .ci/servers"
    done = subprocess.run(
        [program, "--no-defaults", "-vv", "--verify-binlog-checksum", str(path)],
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.stdout, done.stderr.decode()


def printed(found: Iterator[Event]) -> list[str]:
    """The rows of events, as `mariadb-binlog -vv` prints them but for its comments."""
    maps: dict[int, tuple[str, TableMap]] = {}
    lines: list[str] = []
    for event in found:
        data, at = event.data, event.body
        number = int.from_bytes(data[at : at + 6], "little")
        if event.kind == Kind.TABLE_MAP:
            begin = at + 9 + data[at + 8] + 1
            database = data[at + 9 : begin - 1].decode()
            end = begin + 1 + data[begin]
            table = f"`{database}`.`{data[begin + 1 : end].decode()}`"
            maps[number] = table, table_map(data, end + 1, event.end, is_mariadb=False)
        elif event.kind in Kind.ROWS:
            lines += _rows(event, *maps[number])
        elif event.kind in Kind.STATEMENTS:
            statement_of(event, {})
    return lines


def _rows(event: Event, table: str, found: TableMap) -> Iterator[str]:
    data, at = event.data, event.body + 8
    if event.kind in Kind.WITH_EXTRA:
        at += int.from_bytes(data[at : at + 2], "little")
    width, at = packed_integer(data, at)
    if width != len(found.types):
        raise ValueError(f"{width} columns of {len(found.types)}")
    is_update = event.kind in Kind.UPDATES
    at += (width + 7) // 8 * (1 + is_update)
    fields = [field_of(found, place, table) for place in range(width)]
    cutter = RowCutter(fields, range(width))
    columns = [
        LogColumn(ReadColumn("", _DECLARED[each.code], pa.string(), ""), each, "latin1")
        for each in fields
    ]
    heads = ["INSERT INTO", "SET"] if event.kind in Kind.INSERTS else ["DELETE FROM", "WHERE"]
    heads = ["UPDATE", "WHERE"] if is_update else heads
    while at < event.end:
        yield f"### {heads[0]} {table}"
        for part in (heads[1], "SET")[: 1 + is_update]:
            row, at = cutter.cut(data, at)
            yield f"### {part}"
            for place, (column, value) in enumerate(zip(columns, row, strict=True), 1):
                text = "NULL" if value is None else column.text(value, lambda _, values: [])
                is_text = column.field.code in (15, 253, 254) and value is not None
                yield f"###   @{place}='{text}'" if is_text else f"###   @{place}={text}"


@pytest.mark.parametrize("name", WHOLE)
def test_a_recorded_log_is_decoded_as_the_judge_prints_it(name: str) -> None:
    path = installed(f"binlogs/{name}", "mariadb-test-data of Debian")
    text, error = judged(path)
    assert "ERROR" not in error
    found = list(events(packets(path), checksums=False))
    sizes = (len(event.data) for event in found[:-1])
    assert list(accumulate(sizes, initial=4)) == sorted(int(at) for at in _AT.findall(text))
    lines = [line.decode().split(" /* ")[0] for line in text.split(b"\n") if line[:3] == b"###"]
    negative = [re.sub(r"=(-\d+) \(\d+\)$", r"=\1", line) for line in lines]
    assert printed(iter(found)) == negative


@pytest.mark.parametrize("name", DAMAGED)
def test_a_recorded_log_that_the_judge_refuses_is_refused(name: str) -> None:
    path = installed(f"binlogs/{name}", "mariadb-test-data of Debian")
    _, error = judged(path)
    assert "ERROR" in error
    with pytest.raises((SourceError, *DAMAGE)):
        printed(events(packets(path), checksums=False))


# --- MySQL 8.0.40: the statements that its log was made of are known ---


def mysql_8(
    names: dict[bytes, tuple[str, ...]], found: Sequence[Event] | None = None
) -> Iterator[Event]:
    """The recorded log as a server with gtid_mode = ON would have written it, with `names` of its tables' columns."""
    transactions = 0
    path = installed(f"binlogs/{MYSQL_8}", "mariadb-test-data of Debian")
    for event in events(packets(path), checksums=False) if found is None else found:
        at = event.body
        if event.kind == Kind.ANONYMOUS_GTID:
            transactions += 1
            own = UUID(_ONE).bytes + transactions.to_bytes(8, "little")
            data = event.data[: at + 1] + own + event.data[at + 25 :]
            event = replace(event, kind=Kind.MYSQL_GTID, data=data)
        if event.kind == Kind.TABLE_MAP:
            begin = at + 8 + 1 + event.data[at + 8] + 1
            columns = names.get(event.data[begin + 1 : begin + 1 + event.data[begin]], ())
            texts = b"".join(bytes([len(name)]) + name.encode() for name in columns)
            data = event.data[: event.end] + (b"\4" + bytes([len(texts)]) + texts if texts else b"")
            event = replace(event, data=data, end=len(data))
        yield event


def decoder(table: str, columns: Columns) -> ChangeDecoder:
    followed = FollowedTable(
        "test",
        table,
        f"table 'test.{table}'",
        tuple(ReadColumn(name, declared, kind, name) for name, (declared, kind) in columns.items()),
        tuple(columns),
        ("a",),
        {8: "latin1"},
        MysqlGtids,
    )
    return ChangeDecoder([followed], None, lambda _, values: [])


T1: Columns = {
    "a": ("int", pa.int32()),
    "b": ("int", pa.int32()),
    "c": ("varchar(1024)", pa.string()),
}


def test_a_log_of_mysql_8_has_the_rows_of_its_statements() -> None:
    """100 of them are in one compressed transaction."""
    batches = decoder("t1", T1).batches(mysql_8({b"t1": tuple(T1)}))
    found = pa.Table.from_batches(batches).to_pylist()
    rows = [(row["a"], row["b"], row["c"]) for row in found]
    plain = [(1, 0, ""), (2, 0, "hulu"), (3, 0, "bulu"), (4, 0, "skip")]
    packed = [(1000 + n, n, f"--{n}--{'/' * 100}--") for n in range(100)]
    assert rows == [*plain, *packed, (5, 0, "after compressed")]
    assert {row["_op"] for row in found} == {"insert"}
    numbers = [int(row["_lsn"].removeprefix(f"{_ONE}:")) for row in found]
    assert numbers == [2, 3, 3, 4, *[5] * 100, 6]
    assert all(row["_commit_ts"].strftime("%Y-%m-%d %H") == "2024-12-13 19" for row in found)


def test_what_a_log_of_mysql_8_lacks_is_named() -> None:
    with pytest.raises(SourceError, match=r"does not name its columns: .* binlog_row_metadata"):
        list(decoder("t1", T1).batches(mysql_8({})))
    path = installed(f"binlogs/{MYSQL_8}", "mariadb-test-data of Debian")
    log = list(events(packets(path), checksums=False))
    with pytest.raises(SourceError, match=r"without a GTID, .* gtid_mode = ON"):
        list(decoder("t1", T1).batches(log))
    partial = next(at for at, event in enumerate(log) if event.kind == Kind.PARTIAL_UPDATE)
    t2: Columns = {"a": ("int", pa.int32()), "b": ("json", pa.string())}
    begin = next(each for each in mysql_8({}) if each.kind == Kind.MYSQL_GTID)
    (found,) = mysql_8({b"t2": tuple(t2)}, log[partial - 1 : partial])
    with pytest.raises(SourceError, match=r"parts of a JSON value only: .*binlog_row_value"):
        list(decoder("t2", t2).batches([begin, found, log[partial]]))
