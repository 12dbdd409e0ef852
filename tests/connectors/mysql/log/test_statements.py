"""The parts of the change feed that need no server: positions, statements, and MySQL's own forms of events."""

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.mysql.log.binary_json import json_text
from spark_channel.connectors.mysql.log.decoder import ChangeDecoder
from spark_channel.connectors.mysql.log.events import events, inflated
from spark_channel.connectors.mysql.log.fields import LogColumn
from spark_channel.connectors.mysql.log.position import MariadbGtids, MysqlGtids
from spark_channel.connectors.mysql.log.rows import Field
from spark_channel.connectors.mysql.log.statements import (
    TRUNCATES,
    ColumnEffect,
    Effect,
    LoggedStatement,
    effects_of,
)
from spark_channel.connectors.mysql.log.table import FollowedTable, WindowReporter, becomes
from spark_channel.connectors.mysql.log.tables import OneTableFeed
from spark_channel.connectors.sql.catalog import MisfitError, ReadColumn
from spark_channel.connectors.sql.feed.incremental_snapshot import ChunkWindow
from spark_channel.errors import ChannelError, SourceError
from tests.service.fuzz import mutated

ONE, OTHER = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "ffffffff-71ca-11e1-9e33-c80aa9429562"


# --- positions ---


def test_a_place_that_the_server_does_not_find_is_no_log_without_transactions() -> None:
    feed = object.__new__(OneTableFeed)
    feed._gtids = MariadbGtids
    session: Any = SimpleNamespace(place="db:3306", literal=repr, value=lambda _: None)
    with pytest.raises(
        SourceError,
        match=r"db:3306 does not find position 5000000000 in its binary log log\.000001",
    ):
        feed._at(session, "log.000001", 5_000_000_000)
    session.value = lambda _: ""
    assert str(feed._at(session, "log.000001", 4)) == ""


@pytest.mark.parametrize("text", ["", "0-1-270", "0-1-270,1-3-7"])
def test_a_position_of_mariadb_is_written_as_it_is_read(text: str) -> None:
    assert str(MariadbGtids.parse(text)) == text


@pytest.mark.parametrize("text", ["0-1", "x", "0-1-2,0-1-3", ONE, f"{ONE}:1-5"])
def test_what_is_no_position_of_mariadb_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        MariadbGtids.parse(text)


def test_a_position_of_mysql_is_written_in_one_way() -> None:
    text = f"{OTHER.upper()}:7,\n{ONE}:3-5:1:2:9-9"
    assert str(MysqlGtids.parse(text)) == f"{ONE}:1-5:9,{OTHER}:7"


@pytest.mark.parametrize("text", ["0-1-2", ONE, f"{ONE}:", f"{ONE}:tag:1", f"{ONE}:a-b"])
def test_what_is_no_position_of_mysql_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        MysqlGtids.parse(text)


def test_ranges_of_mariadb_end_with_exactly_their_last_transactions() -> None:
    after, upto = MariadbGtids.parse("0-1-5,2-1-1"), MariadbGtids.parse("0-2-7,1-1-1,2-1-1")
    assert upto.covers(after)
    assert not after.covers(upto)
    left = after.remaining(upto)
    seen = [(2, 1, 2), (0, 1, 6), (0, 2, 7), (0, 2, 8), (1, 1, 1), (1, 1, 2)]
    assert [left.takes(gtid) for gtid in seen] == [False, True, True, False, True, False]
    assert left.done
    assert str(upto.meet(MariadbGtids.parse("0-1-6,1-1-9"))) == "0-1-6,1-1-1"
    assert str(upto.union(MariadbGtids.parse("0-1-6,1-1-9,3-1-1"))) == "0-2-7,1-1-9,2-1-1,3-1-1"


Numbers = st.sets(st.integers(1, 40))


@given(Numbers, Numbers, st.integers(1, 40))
def test_sets_of_mysql_are_sets(one: set[int], other: set[int], more: int) -> None:
    def made(numbers: set[int]) -> MysqlGtids:
        return MysqlGtids.parse(
            ",".join(f"{ONE}:{number}" for number in sorted(numbers, reverse=True))
        )

    def numbers(found: MysqlGtids) -> set[int]:
        return {each for a, b in found.held.get(ONE, []) for each in range(a, b + 1)}

    assert numbers(made(one).meet(made(other))) == one & other
    assert numbers(made(one).union(made(other))) == one | other
    assert made(one).covers(made(other)) == (one >= other)
    added = made(one)
    added.add((ONE, more))
    assert added == made(one | {more})
    left = made(one).remaining(made(other))
    assert {number for number in range(1, 41) if left.takes((ONE, number))} == other - one
    assert left.done


@pytest.mark.parametrize(
    ("was", "now", "continues"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("int", "int unsigned", False),
        ("decimal(8,2)", "decimal(10,3)", True),
        ("decimal(8,2)", "decimal(8,3)", False),
        ("varchar(20)", "text", True),
        ("varchar(20)", "varchar(10)", True),
        ("text", "int", False),
        ("datetime(6)", "datetime(3)", False),
        ("enum('a')", "enum('a','b')", True),
        ("enum('a')", "varchar(9)", False),
    ],
)
def test_a_table_continues_with_a_type_that_holds_each_value(
    was: str, now: str, continues: bool
) -> None:
    def table(declared: str) -> FollowedTable:
        columns = (*TABLE.columns[:1], ReadColumn("N", declared, pa.string(), ""))
        return replace(TABLE, columns=columns)

    assert (becomes(table(was), table(now)) == "") == continues
    assert "key (id, x)" in becomes(TABLE, replace(TABLE, key=("id", "x")))


# --- statements ---

UNKNOWN = "is not known to keep its rows"
BY_STATEMENT = "changes its rows by a statement, and not by rows"
CALLS = "calls functions, which may change its rows without a record in the log"
PARTITIONS = "removes or replaces rows of whole partitions"
CASCADE = "a foreign key"
COLUMNS = {
    "id": "int",
    "n": "decimal(8,2)",
    "d": "datetime(6)",
    "v": "varchar(20)",
    "b": "binary(4)",
}


def effect_of(
    text: str,
    *,
    default: str = "shop",
    database: str = "shop",
    table: str = "t",
    mode: int = 1 << 21,
    folds: bool = False,
) -> Effect | None:
    """The only effect of a statement; CASCADE stands for its longer text."""
    statement = LoggedStatement(default, text, mode)
    found = list(effects_of(statement, database, table, folds=folds, columns=COLUMNS))
    if len({str(each) for each in found}) > 1:
        assert all(isinstance(each, ColumnEffect) for each in found)
    effect = found[0] if found else None
    return CASCADE if isinstance(effect, str) and CASCADE in effect else effect


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        ("TRUNCATE TABLE t", TRUNCATES),
        ("truncate `shop`.`t`", TRUNCATES),
        ("/* by cron */ TRUNCATE -- all\n t", TRUNCATES),
        ("TRUNCATE --\nt", TRUNCATES),
        ("TRUNCATE .t;", TRUNCATES),
        ("TRUNCATE TABLE t WAIT 5", TRUNCATES),
        ("# by hand\n/*!TRUNCATE*/ /*M!100000 TABLE */ shop./**/t /*! */", TRUNCATES),
        ("SET STATEMENT max_statement_time=60, sql_mode=(SELECT 'for') FOR TRUNCATE t", TRUNCATES),
        ("SET STATEMENT a=1 FOR SET STATEMENT b=2 FOR TRUNCATE t", TRUNCATES),
        ("TRUNCATE `#mysql50#t`", TRUNCATES),
        ("TRUNCATE TABLE t, u", UNKNOWN),
        ("TRUNCATE other.t", None),
        ("TRUNCATE u", None),
        ("TRUNCATE T", None),
        ("/* 99999 TRUNCATE t */ TRUNCATE u", None),
        ("DROP TABLE IF EXISTS u, shop.t /* generated by server */", "drops it"),
        (f"DROP TABLE {', '.join(f'u{number}' for number in range(2000))}, t", "drops it"),
        ("DROP TEMPORARY TABLE IF EXISTS t", None),
        ("DROP /*!40005 TEMPORARY */ TABLE IF EXISTS t", None),
        ("DROP TABLE other.t", None),
        ("DROP TABLE `shop.t`", None),
        ("DROP VIEW t", None),
        ("DROP INDEX a ON t", None),
        ("DROP DATABASE shop", "drops its database"),
        ("DROP SCHEMA IF EXISTS `shop`;", "drops its database"),
        ("CREATE OR REPLACE DATABASE shop CHARACTER SET utf8mb4", "drops its database"),
        ("CREATE DATABASE IF NOT EXISTS shop", None),
        ("ALTER DATABASE shop CHARACTER SET utf8mb4", None),
        ("DROP DATABASE other", None),
        ("RENAME TABLE u TO v, v TO t", "renames it"),
        ("SET STATEMENT lock_wait_timeout=5 FOR RENAME TABLE t TO u", "renames it"),
        ("RENAME TABLE u TO other.t", None),
        ("RENAME USER t TO u", None),
        ("CREATE TABLE t (id INT)", None),
        ("CREATE TEMPORARY TABLE t (id INT)", None),
        ("CREATE OR REPLACE TEMPORARY TABLE t (id INT)", None),
        ("CREATE TABLE IF NOT EXISTS t (id INT)", None),
        ("CREATE TABLE u LIKE t", None),
        ("CREATE TABLE u AS SELECT * FROM t", None),
        ("CREATE TABLE u (id INT REFERENCES t (id) ON DELETE CASCADE)", None),
        ("CREATE TABLE t (p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE SET NULL)", CASCADE),
        ("CREATE OR REPLACE TABLE shop.t (id INT)", "creates it again"),
        ("CREATE OR REPLACE /* x */ TABLE t LIKE u", "creates it again"),
        ("CREATE OR REPLACE TABLE u (id INT)", None),
        ("CREATE OR REPLACE TABLE u AS SELECT * FROM t", None),
        ("CREATE TABLE u (id INT) ENGINE=MERGE UNION=(t)", "lets another table change its rows"),
        ("CREATE DEFINER=`root`@`%` TRIGGER g AFTER INSERT ON t FOR EACH ROW SET @a = 1", None),
        ("CREATE OR REPLACE ALGORITHM=MERGE SQL SECURITY INVOKER VIEW v AS SELECT * FROM t", None),
        ("CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO TRUNCATE t", None),
        ("CREATE PROCEDURE p() BEGIN TRUNCATE t; DROP TABLE t; END", None),
        ("CREATE UNIQUE INDEX a ON t (a)", None),
        ("CREATE OR REPLACE SEQUENCE t", UNKNOWN),
        ("INSERT INTO t VALUES (1)", BY_STATEMENT),
        ("UPDATE x JOIN shop.`t` SET a = 1", BY_STATEMENT),
        ("WITH x AS (SELECT 1) DELETE FROM t", BY_STATEMENT),
        ("SET STATEMENT binlog_format='STATEMENT' FOR UPDATE t SET v = 'z'", BY_STATEMENT),
        ("LOAD DATA INFILE 'x' INTO TABLE t", BY_STATEMENT),
        ("INSERT INTO u VALUES ('total')", None),
        ("INSERT INTO u VALUES ('t')", None),
        ("UPDATE other.t SET a = 1", None),
        ("SELECT shop.f()", CALLS),
        ("ANALYZE TABLE t", None),
        ("OPTIMIZE NO_WRITE_TO_BINLOG TABLE t", None),
        ("ANALYZE FORMAT=JSON DELETE FROM t", UNKNOWN),
        ("REPAIR TABLE t", UNKNOWN),
        ("FLUSH TABLES t", None),
        ("", None),
        (";", None),
        ("/* t */", None),
        ("GRANT SELECT ON t TO x", None),
        ("FROBNICATE t", UNKNOWN),
        ("FROBNICATE u", None),
    ],
)
def test_what_a_statement_does_to_the_table(statement: str, effect: str | None) -> None:
    assert effect_of(statement) == effect


@pytest.mark.parametrize(
    ("actions", "effect"),
    [
        ("RENAME TO u", "renames it"),
        ("ADD a INT, RENAME u", "renames it"),
        ("RENAME COLUMN a TO b", None),
        ("RENAME INDEX a TO b", None),
        ("ADD INDEX (a)", None),
        ("ADD UNIQUE (a), ADD CHECK (a > 0), DROP PRIMARY KEY", None),
        ("ADD COLUMN (a INT, b INT) , ALGORITHM=INPLACE, LOCK=NONE", None),
        ("WAIT 5 ADD COLUMN a INT", None),
        ("ADD a INT REMOVE PARTITIONING", None),
        ("ADD FOREIGN KEY (p) REFERENCES p (id) ON UPDATE CASCADE", CASCADE),
        ("ADD COLUMN p INT REFERENCES p (id) ON DELETE SET NULL", CASCADE),
        ("ADD FOREIGN KEY (p) REFERENCES p (id) ON DELETE RESTRICT", None),
        ("ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COMMENT='it''s t'", None),
        ("ENGINE BLACKHOLE", "gives it the engine BLACKHOLE, which does not keep its rows"),
        ("COMMENT='x', ENGINE = CSV", "gives it the engine CSV, which does not keep its rows"),
        ("FORCE, ORDER BY a, DISABLE KEYS", None),
        ("CONVERT TO CHARACTER SET utf8mb4", None),
        ("PARTITION BY HASH (id) PARTITIONS 4", None),
        ("REMOVE PARTITIONING", None),
        ("TRUNCATE PARTITION p0", PARTITIONS),
        ("DROP PARTITION IF EXISTS p0", PARTITIONS),
        ("EXCHANGE PARTITION p WITH TABLE u", PARTITIONS),
        ("CONVERT PARTITION p TO TABLE u", PARTITIONS),
        ("REPAIR PARTITION ALL", PARTITIONS),
        ("IMPORT TABLESPACE", PARTITIONS),
        ("REORGANIZE PARTITION p INTO (PARTITION q VALUES LESS THAN (5))", None),
        ("ADD PARTITION (PARTITION q VALUES LESS THAN (5))", None),
        ("ADD SYSTEM VERSIONING", "makes it keep its history, whose rows the log has, too"),
        ("FROBNICATE ALL ROWS", UNKNOWN),
        ("ADD a INT, FROBNICATE = 5", UNKNOWN),
        ("DROP n", ColumnEffect("n", lost=True)),
        ("DROP COLUMN IF EXISTS N, ADD n DECIMAL(8,2)", ColumnEffect("n", lost=True)),
        ("DROP KEY n", None),
        ("RENAME COLUMN n TO m, RENAME COLUMN m TO n", ColumnEffect("n", lost=True)),
        ("CHANGE n m INT", ColumnEffect("n", lost=True)),
        ("CHANGE n `n` NUMERIC(9,2) NOT NULL", None),
        ("MODIFY n TEXT", ColumnEffect("n", lost=False)),
        ("MODIFY n DECIMAL(8,2) AS (id) STORED", ColumnEffect("n", lost=False)),
        ("MODIFY d DATETIME(3) DEFAULT CURRENT_TIMESTAMP(6)", ColumnEffect("d", lost=False)),
        ("MODIFY d DATETIME(6) AFTER id", None),
        ("MODIFY v TEXT CHARACTER SET utf8mb4", None),
        ("MODIFY v CHARACTER VARYING (30)", None),
        ("MODIFY v CHAR(30)", ColumnEffect("v", lost=False)),
        ("MODIFY b BINARY(5)", ColumnEffect("b", lost=False)),
        ("MODIFY id BIGINT", None),
        ("MODIFY other ENUM('a')", None),
        ("ALTER n SET DEFAULT 5, ALTER INDEX i INVISIBLE", None),
    ],
)
@pytest.mark.parametrize(
    "begin",
    [
        "ALTER TABLE t",
        "/* x */ ALTER /*! ONLINE */ TABLE IF EXISTS `shop`.`t`",
        "SET STATEMENT a=1 FOR ALTER TABLE t",
    ],
)
def test_what_an_alter_does_to_the_table(
    begin: str, actions: str, effect: str | ColumnEffect | None
) -> None:
    assert effect_of(f"{begin} {actions}") == effect


@pytest.mark.parametrize(
    ("actions", "effect"),
    [
        ("RENAME t", "renames it"),
        ("EXCHANGE PARTITION p WITH TABLE t", PARTITIONS),
        ("CONVERT TABLE t TO PARTITION p VALUES LESS THAN (5)", PARTITIONS),
        ("UNION=(t)", "lets another table change its rows"),
        ("EXCHANGE PARTITION p WITH TABLE v", None),
        ("ADD FOREIGN KEY (a) REFERENCES t (id) ON DELETE CASCADE", None),
        ("DROP COLUMN n", None),
    ],
)
def test_what_an_alter_of_another_table_does_to_the_table(actions: str, effect: str | None) -> None:
    assert effect_of(f"ALTER TABLE u {actions}") == effect


def test_an_alter_that_may_change_values_stops_the_stream() -> None:
    removes = "removes or changes rows that do not fit (IGNORE)"
    assert effect_of("ALTER IGNORE TABLE t ADD UNIQUE (v)") == removes
    assert effect_of("ALTER ONLINE IGNORE TABLE t ADD PRIMARY KEY (v)") == removes
    assert effect_of("ALTER IGNORE TABLE u ADD UNIQUE (t)") is None
    for action in ("MODIFY id BIGINT", "CONVERT TO CHARACTER SET ascii"):
        found = effect_of(f"ALTER TABLE t {action}", mode=0)
        assert isinstance(found, ColumnEffect), action
        assert not found.lost, action


@pytest.mark.parametrize(
    ("statement", "mode", "effect"),
    [
        ('TRUNCATE "t"', 4, TRUNCATES),
        ('DROP TABLE "a""t", "shop"."t"', 4, "drops it"),
        (r"ALTER TABLE u COMMENT 'a\', RENAME t", 1 << 20, "renames it"),
        (r"ALTER TABLE u COMMENT 'a\', RENAME t -- '", 0, None),
        ('ALTER TABLE u COMMENT "RENAME t"', 0, None),
    ],
)
def test_a_statement_is_read_in_its_sessions_mode(
    statement: str, mode: int, effect: str | None
) -> None:
    assert effect_of(statement, mode=mode) == effect


def test_a_server_whose_names_are_equal_in_any_case() -> None:
    assert effect_of("TRUNCATE Shop.T", default="", folds=True) == TRUNCATES


def test_a_name_with_quotes() -> None:
    names: Any = {"database": "a`b", "table": 'x"y`z'}
    assert effect_of('DROP TABLE `a``b`.`x"y``z`', **names) == "drops it"
    assert effect_of('DROP TABLE "a`b"."x""y`z"', mode=4, **names) == "drops it"
    assert effect_of('DROP TABLE `x"y``z`', **names) is None


# --- MySQL's forms; none of its servers was at hand ---


def lenenc(data: bytes) -> bytes:
    return bytes([len(data)]) + data


def event(
    kind: int,
    body: bytes,
    *,
    checksum: bool = True,
    seconds: int = 1_700_000_000,
    flags: int = 0,
) -> bytes:
    size = 19 + len(body) + (4 if checksum else 0)
    data = struct.pack("<IBIIIH", seconds, kind, 1, size, 1000, flags) + body
    return data + struct.pack("<I", zlib.crc32(data)) if checksum else data


def mysql_gtid(number: int, micros: int = 1_700_000_000_123_456) -> bytes:
    body = b"\1" + UUID(ONE).bytes + struct.pack("<Q", number) + b"\2" + struct.pack("<QQ", 1, 2)
    return body + micros.to_bytes(7, "little")


def query(text: str) -> bytes:
    return struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0" + text.encode()


def mysql_map() -> bytes:
    """id INT UNSIGNED, y YEAR, n DECIMAL(4,2), j JSON, item VARCHAR(20), e ENUM('a','b'), g GEOMETRY."""
    types = bytes([3, 13, 246, 245, 15, 254, 255])
    metadata = bytes([4, 2]) + b"\4" + struct.pack("<H", 80) + bytes([247, 1]) + b"\4"
    names = b"".join(lenenc(name.encode()) for name in ("id", "y", "n", "j", "item", "e", "g"))
    optional = b"\1" + lenenc(b"\x80") + b"\2" + lenenc(b"\xfc\xff\0") + b"\4" + lenenc(names)
    optional += b"\6" + lenenc(b"\2\1a\1b") + b"\x0a" + lenenc(b"\xfc\xff\0")
    return b"\x07\0\0\0\0\0\1\0\4shop\0\1t\0" + lenenc(types) + lenenc(metadata) + b"\0" + optional


JSON = bytes.fromhex("00 01 00 0c 00 0b 00 01 00 05 01 00 61")


def mysql_row(number: int, *, null: bool = False) -> bytes:
    if null:
        return b"\x7e" + struct.pack("<I", number)
    decimal = bytes([0x80 + 12, 50])
    fields = (
        struct.pack("<IB", number, 124)
        + decimal
        + struct.pack("<I", len(JSON))
        + JSON
        + lenenc("é".encode())
    )
    return b"\0" + fields + b"\2" + struct.pack("<I", 3) + b"geo"


def mysql_rows(*images: bytes, update: bool = False) -> bytes:
    """With the bit behind the seven columns, as MySQL writes them."""
    head = b"\x07\0\0\0\0\0\1\0" + struct.pack("<H", 2) + b"\7" + b"\xff" * (2 if update else 1)
    return head + b"".join(images)


def transaction(number: int, *, checksum: bool) -> list[bytes]:
    """All but the GTID."""
    return [
        event(2, query("BEGIN"), checksum=checksum),
        event(19, mysql_map(), checksum=checksum),
        event(
            30, mysql_rows(mysql_row(number), mysql_row(number + 1, null=True)), checksum=checksum
        ),
        event(
            31, mysql_rows(mysql_row(number), mysql_row(number + 9), update=True), checksum=checksum
        ),
        event(32, mysql_rows(mysql_row(number + 9)), checksum=checksum),
        event(16, b"\0" * 8, checksum=checksum),
    ]


TABLE = FollowedTable(
    "shop",
    "t",
    "table 'shop.t'",
    tuple(
        ReadColumn(name, declared, kind, name)
        for name, declared, kind in (
            ("id", "int unsigned", pa.uint32()),
            ("y", "year", pa.int16()),
            ("n", "decimal(4,2)", pa.decimal128(4, 2)),
            ("j", "json", pa.string()),
            ("item", "varchar(20)", pa.string()),
            ("e", "enum('a','b')", pa.string()),
        )
    ),
    ("id", "y", "n", "j", "item", "e", "g"),
    ("id",),
    {255: "utf8mb4"},
    MysqlGtids,
)


def decoded(packets: list[bytes], upto: str = f"{ONE}:1-9") -> list[dict[str, object]]:
    remaining = MysqlGtids.parse("").remaining(MysqlGtids.parse(upto))
    decoder = ChangeDecoder([TABLE], remaining, lambda expression, values: [])
    return [
        row
        for batch in decoder.batches(events(packets, checksums=True))
        for row in batch.to_pylist()
    ]


def expected(number: int, gtid: int) -> list[tuple[object, ...]]:
    name = f"{ONE}:{gtid}"
    return [
        ("insert", number, name),
        ("insert", number + 1, name),
        ("delete", number, name),
        ("update", number + 9, name),
        ("delete", number + 9, name),
    ]


def test_rows_of_mysql_are_decoded() -> None:
    found = decoded([event(33, mysql_gtid(1)), *transaction(10, checksum=True)])
    assert [(row["_op"], row["id"], row["_lsn"]) for row in found] == expected(10, 1)
    first, empty = found[0], found[1]
    assert (first["y"], first["n"], first["j"]) == (2024, Decimal("12.50"), '{"a": 1}')
    assert (first["item"], first["e"]) == ("é", "b")
    assert [empty[name] for name in ("y", "n", "j", "item", "e")] == [None] * 5
    assert str(first["_commit_ts"]) == "2023-11-14 22:13:20.123456+00:00"


@pytest.mark.parametrize("has", [None, lambda name: name in ("ID", "Item")], ids=["fail", "evolve"])
def test_a_column_that_was_renamed_to_another_case_has_its_values(
    has: Callable[[str], bool] | None,
) -> None:
    spelled = {"id": "ID", "item": "Item"}
    table = replace(
        TABLE,
        columns=tuple(
            replace(each, name=spelled.get(each.name, each.name)) for each in TABLE.columns
        ),
        names=tuple(spelled.get(name, name) for name in TABLE.names),
        key=("ID",),
    )
    decoder = ChangeDecoder([table], None, lambda expression, values: [], has=has)
    packets = [event(33, mysql_gtid(1)), *transaction(10, checksum=True)]
    found = [
        row
        for batch in decoder.batches(events(packets, checksums=True))
        for row in batch.to_pylist()
    ]
    assert [(row["ID"], row["Item"]) for row in found[:2]] == [(10, "é"), (11, None)]


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [(26, 0, "lost events"), (99, 0, "unknown kind 99"), (99, 0x80, None), (160, 0, None)],
)
def test_an_event_of_unknown_kind_stops_the_stream(
    kind: int, flags: int, message: str | None
) -> None:
    odd = event(kind, b"x" * 8, flags=flags)
    packets = [event(33, mysql_gtid(1)), odd, *transaction(10, checksum=True)]
    if message is None:
        assert len(decoded(packets)) == 5
        return
    with pytest.raises(SourceError, match=message):
        decoded(packets)


@pytest.mark.parametrize("algorithm", [0, 255])
def test_a_compressed_transaction_of_mysql_is_decoded(algorithm: int) -> None:
    whole = b"".join(transaction(10, checksum=False))
    packed = pa.compress(whole, codec="zstd", asbytes=True) if algorithm == 0 else whole
    code = b"\xfc\xff\0" if algorithm == 255 else b"\0"
    size = b"\xfd" + len(whole).to_bytes(3, "little")
    head = b"\1" + lenenc(b"\x05") + b"\2" + lenenc(code) + b"\3" + lenenc(size) + b"\0"
    found = decoded([event(33, mysql_gtid(1)), event(40, head + packed)])
    assert [(row["_op"], row["id"], row["_lsn"]) for row in found] == expected(10, 1)


def test_a_transaction_outside_the_range_is_left_out() -> None:
    packets = [
        part
        for number in (1, 2, 3)
        for part in (event(33, mysql_gtid(number)), *transaction(number, checksum=True))
    ]
    assert {row["_lsn"] for row in decoded(packets, f"{ONE}:2")} == {f"{ONE}:2"}


def test_a_window_of_mysql_is_told_what_a_snapshot_may_not_have_seen() -> None:
    """It had 1 and 2 before the snapshot; the range is behind 3 and ends with 4; 5 may be visible, and is logged."""
    low, after, upto = (MysqlGtids.parse(f"{ONE}:1-{number}") for number in (2, 3, 4))
    begin = low.meet(after)
    seen = begin.remaining(low)
    window = ChunkWindow(seen.takes)
    key = [ReadColumn("id", "int unsigned", pa.uint64(), "")]
    telling = WindowReporter(window, key, begin.remaining(after), seen)
    decoder = ChangeDecoder(
        [TABLE], after.remaining(upto), lambda expression, values: [], telling=telling
    )
    packets = [
        part
        for number in (3, 4, 5)
        for part in (event(33, mysql_gtid(number)), *transaction(100 * number, checksum=True))
    ]
    assert not decoder.done, "the log is read to its end"
    found = [
        row
        for batch in decoder.batches(events(packets, checksums=True))
        for row in batch.to_pylist()
    ]
    assert [(row["_op"], row["id"], row["_lsn"]) for row in found] == expected(400, 4)
    assert window.keys == {
        (str(100 * number + more),) for number in (3, 4, 5) for more in (0, 1, 9)
    }
    assert not decoder.lacks


def test_a_window_is_told_as_the_log_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that changes a million times is held once."""
    monkeypatch.setattr("spark_channel.connectors.mysql.log.decoder._BATCH_ROWS", 8)
    nothing = MysqlGtids.parse("")
    window = ChunkWindow(lambda _: False)
    key = [ReadColumn("id", "int unsigned", pa.uint64(), "")]
    telling = WindowReporter(window, key, nothing.remaining(nothing), nothing.remaining(nothing))
    decoder = ChangeDecoder(
        [TABLE], nothing.remaining(nothing), lambda expression, values: [], telling=telling
    )
    reported = []

    def packets() -> Iterator[bytes]:
        for number in range(1, 5):
            reported.append(len(window.keys))
            yield event(33, mysql_gtid(number))
            yield from transaction(100, checksum=True)

    assert list(decoder.batches(events(packets(), checksums=True))) == []
    assert reported == [0, 0, 3, 3], "five keys of each transaction, of which three differ"
    assert window.keys == {("100",), ("101",), ("109",)}


def test_a_damaged_event_is_told() -> None:
    packets = [event(33, mysql_gtid(1)), *transaction(10, checksum=True)]
    packets[3] = packets[3][:40] + bytes([packets[3][40] ^ 1]) + packets[3][41:]
    with pytest.raises(SourceError, match="does not fit its checksum"):
        decoded(packets)


@pytest.mark.parametrize("kind", [30, 31, 32])
@pytest.mark.parametrize("is_held", [False, True], ids=["decoded", "reported"])
def test_rows_that_end_behind_their_event_are_refused(kind: int, is_held: bool) -> None:
    """Without checksums nothing else notices a length that is wrong; and an update without its second half."""
    nothing, upto = MysqlGtids.parse(""), MysqlGtids.parse(f"{ONE}:1-9")
    key = [ReadColumn("id", "int unsigned", pa.uint64(), "")]
    window = ChunkWindow(lambda _: False)
    covered = nothing.remaining(upto if is_held else nothing)
    telling = WindowReporter(window, key, covered, nothing.remaining(nothing))
    decoder = ChangeDecoder([TABLE], nothing.remaining(upto), _ask_nothing, telling=telling)
    rows = mysql_rows(*[mysql_row(1)] * (1 + (kind == 31)), update=kind == 31)[:-1]
    packets = [
        event(33, mysql_gtid(1), checksum=False),
        *transaction(1, checksum=False)[:2],
        event(kind, rows, checksum=False),
    ]
    with pytest.raises(SourceError, match=r"rows that end 1 bytes behind .* it was damaged"):
        list(decoder.batches(events(packets, checksums=False)))


def test_a_table_map_whose_parts_do_not_fit_each_other_is_refused() -> None:
    """A type with metadata that is not known here would move that of the columns behind it."""
    whole = mysql_map()
    unknown = whole.replace(bytes([3, 13, 246]), bytes([20, 13, 246])).replace(
        b"\x08\4\2\4P", b"\x09\1\4\2\4P"
    )
    fewer = whole.replace(lenenc(b"g"), b"").replace(b"\4\x12", b"\4\x10")
    for odd, why in ((unknown, "9 bytes of metadata for"), (fewer, "6 names of 7 columns")):
        assert odd != whole
        packets = [event(33, mysql_gtid(1)), event(2, query("BEGIN")), event(19, odd)]
        with pytest.raises(SourceError, match=why):
            decoded(packets)


@pytest.mark.parametrize("parts", range(5))
@pytest.mark.parametrize("more", [0, 2], ids=["last", "reused"])
def test_a_transaction_that_a_crash_cut_off_is_not_taken_for_a_whole_one(
    parts: int, more: int
) -> None:
    """The next one may have its GTID, and rows of the first were rolled back."""
    cut = [event(33, mysql_gtid(2)), *transaction(20, checksum=True)[:parts]]
    packets = [event(33, mysql_gtid(1)), *transaction(10, checksum=True), *cut]
    if more:
        packets += [event(33, mysql_gtid(more)), *transaction(30, checksum=True)]
    with pytest.raises(SourceError, match=rf"a transaction without an end, .* {ONE}:2 of"):
        decoded(packets, f"{ONE}:1-2")
    assert len(decoded(packets, f"{ONE}:1")) == 5


@pytest.mark.parametrize(
    ("own", "first", "time"),
    [
        (1_700_000_005_000_000, 1_700_000_000_123_456, "2023-11-14 22:13:20.123456+00:00"),
        (1_700_000_005_000_000, 0, "2023-11-14 22:13:20+00:00"),
        (0, None, "2023-11-14 22:13:20+00:00"),
    ],
)
def test_the_time_of_a_transaction_is_that_of_its_first_server(
    own: int, first: int | None, time: str
) -> None:
    """A replica of MySQL 8 writes 0 for a server before it, whose time is in the head of the event."""
    body = mysql_gtid(1, own if first is None else own | 1 << 55)
    body += b"" if first is None else first.to_bytes(7, "little")
    found = decoded([event(33, body), *transaction(10, checksum=True)])
    assert {str(row["_commit_ts"]) for row in found} == {time}


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (event(34, mysql_gtid(1)), "without a GTID"),
        (event(42, b"\0" * 20), "tagged GTID"),
        (event(39, mysql_rows(mysql_row(1))), "binlog_row_value_options = ''"),
        (event(38, b"\0" + b"\0" * 12), "XA transaction"),
        (event(2, query("ROLLBACK")), "was rolled back, and yet is in the log"),
    ],
)
def test_what_cannot_be_followed_is_told(packet: bytes, why: str) -> None:
    begun = [event(33, mysql_gtid(1)), *transaction(10, checksum=True)[:3]]
    with pytest.raises(SourceError, match=why):
        decoded([*begun, packet])


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("0400", "null"),
        ("0401", "true"),
        ("0402", "false"),
        ("05ffff", "-1"),
        ("06ffff", "65535"),
        ("07ffffffff", "-1"),
        ("09ffffffffffffffff", "-1"),
        ("0affffffffffffffff", "18446744073709551615"),
        ("0c03 22c3a9", '"\\"é"'),
        ("02 0200 0a00 05 0100 05 0200", "[1, 2]"),
        ("02 0000 0400", "[]"),
        ("00 0000 0400", "{}"),
        ("00 0100 0c00 0b00 0100 05 0100 61", '{"a": 1}'),
        ("03 01000000 0d000000 07 05000000", "[5]"),
        ("0f f6 04 0402 8c32", "12.50"),
        ("02 0100 0c00 0c 0700 05 68656c6c6f", '["hello"]'),
        ("", "null"),
    ],
)
def test_json_of_mysql_is_its_text(data: str, text: str) -> None:
    assert json_text(bytes.fromhex(data)) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (-0.1, "-0.1"),
        (1e15, "1e15"),
        (1e14, "100000000000000.0"),
        (1.5e300, "1.5e300"),
        (-1.25e-20, "-1.25e-20"),
        (1e-5, "0.00001"),
        (1.5e-7, "0.00000015"),
        (0.0, "0.0"),
    ],
)
def test_doubles_in_json_of_mysql(value: float, text: str) -> None:
    assert json_text(b"\x0b" + struct.pack("<d", value)) == text


@pytest.mark.parametrize("number", [3_000, pytest.param(1_000_000, marks=pytest.mark.soak)])
def test_events_that_a_server_makes_up_are_refused_in_our_words(number: int) -> None:
    """With checksums that fit: one that is not what it says, or was taken over, computes them, too."""
    random_ = random.Random(17)
    begun = [event(33, mysql_gtid(1)), *transaction(10, checksum=True)]
    whole = b"".join(transaction(10, checksum=False))
    size = b"\xfd" + len(whole).to_bytes(3, "little")
    head = b"\1" + lenenc(b"\x05") + b"\2" + lenenc(b"\0") + b"\3" + lenenc(size) + b"\0"
    begun.append(event(40, head + pa.compress(whole, codec="zstd", asbytes=True)))
    refused = 0
    for _ in range(number):
        packets = list(begun)
        place = random_.randrange(1, len(packets))
        old = packets[place]
        packets[place] = event(old[4], mutated(random_, old[19:-4]))
        try:
            decoded(packets)
        except (ChannelError, MisfitError):
            refused += 1
    assert refused > number // 4


def test_json_that_refers_to_itself_is_no_endless_text() -> None:
    """An array whose values are the array itself; and 50 levels of which each names the next one twice: 2^50 values."""
    with pytest.raises(ValueError, match="more values than bytes"):
        json_text(b"\2" + struct.pack("<HH", 1, 7) + b"\2" + struct.pack("<H", 0))
    level = struct.pack("<HH", 2, 10) + (b"\2" + struct.pack("<H", 10)) * 2
    with pytest.raises(ValueError, match="more values than bytes"):
        json_text(b"\2" + level * 50 + struct.pack("<HH", 0, 4))


def test_json_whose_values_are_one_long_text_is_no_longer_than_it() -> None:
    """500 values, each of which is the same 1 000 bytes: 3.5 kB made half a megabyte, and 1 MB more than 100 GB."""
    long = b"\xe8\x07" + b"x" * 1_000
    head = struct.pack("<HH", 500, 4 + 3 * 500 + len(long))
    with pytest.raises(ValueError, match="texts are longer than it"):
        json_text(b"\2" + head + (b"\x0c" + struct.pack("<H", 4 + 3 * 500)) * 500 + long)


def test_a_number_that_customSchema_has_no_room_for_is_not_called_damage() -> None:  # noqa: N802 - an option's name
    column = LogColumn(
        ReadColumn("a", "int(11)", pa.int8(), "a"), Field(3, 0, False, "i", 4), "binary"
    )
    assert column.array((-1, None, 127), _ask_nothing).to_pylist() == [-1, None, 127]
    with pytest.raises(MisfitError) as met:
        column.array((1, 300), _ask_nothing)
    assert "'300'" in met.value.what


def test_keys_that_are_damaged_are_told() -> None:
    """The keys of rows that are not selected, which a chunk of existing rows needs."""
    low, after = MysqlGtids.parse(f"{ONE}:1-2"), MysqlGtids.parse(f"{ONE}:1-3")
    begin = low.meet(after)
    seen = begin.remaining(low)
    key = [ReadColumn("item", "varchar(20)", pa.string(), "")]
    telling = WindowReporter(ChunkWindow(seen.takes), key, begin.remaining(after), seen)
    decoder = ChangeDecoder([TABLE], after.remaining(after), _ask_nothing, telling=telling)
    row = mysql_row(1).replace("é".encode(), b"\xff\xfe")
    packets = [
        event(33, mysql_gtid(3)),
        *transaction(1, checksum=True)[:2],
        event(30, mysql_rows(row)),
        event(16, b"\0" * 8),
    ]
    with pytest.raises(SourceError, match=r"values of table 'shop\.t' .* are not understood"):
        list(decoder.batches(events(packets, checksums=True)))


def _ask_nothing(expression: str, values: object) -> list[str]:
    return []


def test_a_compressed_transaction_is_no_endless_one() -> None:
    """An event of no bytes inside it was read again and again; and 40 bytes announced any size."""
    for inner, size in (
        (event(2, query("BEGIN"), checksum=False)[:9] + b"\0" * 10, 19),
        (b"x", 1 << 40),
    ):
        length = b"\xfe" + size.to_bytes(8, "little")
        head = b"\2" + lenenc(b"\0") + b"\3" + lenenc(length) + b"\0"
        packed = pa.compress(inner, codec="zstd", asbytes=True)
        with pytest.raises(SourceError, match="is not understood"):
            decoded([event(33, mysql_gtid(1)), event(40, head + packed)])
    with pytest.raises(ValueError, match="without an end"):
        inflated(b"\1\xff" + zlib.compress(b"x" * 100)[:-5])
