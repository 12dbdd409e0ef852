"""The binary log as a change feed, held against what the batch reader and the server itself say."""

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from spark_channel.connectors.base.feed import ChangeFeed, FeedLimit, FeedOptions, change_schema
from spark_channel.errors import ChannelError, OptionError, SchemaError, SourceError
from tests.connectors.mysql.shop import Shop
from tests.connectors.mysql.test_types import READ, REFUSED, UNREAD, WRITTEN

NO_LIMIT = FeedLimit()


def feed_of(shop: Shop, dbtable: str = "t", **options: Any) -> ChangeFeed:
    return shop.reader(dbtable, binlog="true", **options).feed(FeedOptions())


def batches(feed: ChangeFeed, after: Any, upto: Any) -> list[pa.RecordBatch]:
    return [batch for split in feed.changes(after, upto) for batch in feed.read(split)]


def rows(feed: ChangeFeed, after: Any, upto: Any) -> list[dict[str, Any]]:
    return [row for batch in batches(feed, after, upto) for row in batch.to_pylist()]


def all_after(feed: ChangeFeed, after: Any) -> list[dict[str, Any]]:
    return rows(feed, after, feed.latest(after, NO_LIMIT))


def brief(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_op"], row["id"], row["item"]) for row in found]


def plain(shop: Shop) -> None:
    shop.sql("CREATE TABLE t (id INT PRIMARY KEY, item VARCHAR(20), n DECIMAL(8,2))")


def test_every_change_comes_in_the_order_of_the_log(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (start,) = feed.now()
    assert feed.latest(start, NO_LIMIT) == start
    logged.sql(
        "INSERT INTO t VALUES (1, 'a', 1.25), (2, NULL, NULL); UPDATE t SET item = 'b' WHERE id = 1; "
        "UPDATE t SET id = 3 WHERE id = 1; DELETE FROM t WHERE id = 2; CREATE TABLE other LIKE t; "
        "INSERT INTO other VALUES (1, 'other', 0); TRUNCATE other; TRUNCATE TABLE t; "
        "BEGIN; INSERT INTO t VALUES (9, 'never', 0); ROLLBACK; ALTER TABLE t ADD INDEX (item); "
        "BEGIN; INSERT INTO t VALUES (4, 'c', 0); SAVEPOINT s; INSERT INTO t VALUES (5, 'never', 0); "
        "ROLLBACK TO s; INSERT INTO t VALUES (6, 'd', 0); COMMIT"
    )
    end = feed.latest(start, NO_LIMIT)
    found = rows(feed, start, end)
    assert brief(found) == [
        ("insert", 1, "a"),
        ("insert", 2, None),
        ("update", 1, "b"),
        ("delete", 1, "b"),
        ("update", 3, "b"),
        ("delete", 2, None),
        ("truncate", None, None),
        ("insert", 4, "c"),
        ("insert", 6, "d"),
    ]
    assert str(found[0]["n"]) == "1.25"
    assert found[0]["_lsn"] == found[1]["_lsn"] != found[2]["_lsn"]
    assert found[-1]["_lsn"] == end["gtid"], "the transaction's own name"
    assert found[0]["_commit_ts"] is not None
    assert rows(feed, start, end) == found, "a range can be read again"
    assert rows(feed, {"gtid": found[2]["_lsn"]}, end) == found[3:], "from any transaction on"
    assert feed.latest(end, NO_LIMIT) == end
    assert not feed.changes(end, end)


def test_the_schema_is_that_of_every_log(logged: Shop) -> None:
    plain(logged)
    assert feed_of(logged).schema() == change_schema(logged.reader().schema())


def test_a_limit_cuts_between_transactions(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    (start,) = feed.now()
    for number in range(6):
        logged.sql(f"INSERT INTO t VALUES ({number}, 'x', 0), ({number + 100}, 'y', 0)")
    ahead = feed.latest(token, FeedLimit(rows=3))
    assert feed.latest(token, NO_LIMIT, ahead) == ahead, "not past `upto`"
    assert feed.before(token, NO_LIMIT, ahead) == ahead
    assert feed.before(ahead, NO_LIMIT, ahead) is None
    seen = []
    while (end := feed.latest(token, FeedLimit(rows=3))) != token:
        seen.append(len(rows(feed, token, end)))
        token = end
    assert seen == [4, 4, 4]
    assert feed.reaches(token, start)
    assert not feed.reaches(start, token)
    assert len(rows(feed, start, token)) == 12


def test_base_and_changes_hold_every_row(logged: Shop) -> None:
    plain(logged)
    logged.sql("INSERT INTO t SELECT seq, 'old', seq FROM seq_1_to_100")
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql("UPDATE t SET item = 'new' WHERE id <= 10")
    base = [row for s in feed.base([token], 2) for b in feed.read(s) for row in b.to_pylist()]
    assert {(row["_op"], row["_lsn"]) for row in base} == {("insert", token["gtid"])}
    state = {row["id"]: row["item"] for row in base}
    state |= {row["id"]: row["item"] for row in all_after(feed, token)}
    assert state == {n: "new" if n <= 10 else "old" for n in range(1, 101)}
    (earliest,) = feed.earliest()
    assert len(all_after(feed, earliest)) == 110, "with what is in the log from before"


def listed(prefix: str, count: int) -> str:
    return ",".join(f"'{prefix}{number}'" for number in range(count))


def times(kind: str, first: str, last: str) -> list[tuple[str, list[str]]]:
    """With each number of digits of a second."""
    ends = ["", *("." + "9" * digits for digits in range(1, 7))]
    return [
        (f"{kind}({digits})", [f"'{first}'", f"'{last}{end}'"]) for digits, end in enumerate(ends)
    ]


def decimal(digits: int, scale: int) -> tuple[str, list[str]]:
    whole = digits - scale
    values = ["0", f"-{'9' * whole}.{'9' * scale}", f"{'1' * whole}.{'5' * scale}"]
    return f"DECIMAL({digits},{scale})", values


MORE: list[tuple[str, list[str]]] = [
    *times("DATETIME", "1000-01-01 00:00:00", "9999-12-31 23:59:59"),
    *times("TIMESTAMP", "1970-01-01 00:00:01", "2038-01-19 03:14:07"),
    *times("TIME", "00:00:00", "23:59:59"),
    *(
        decimal(*each)
        for each in (
            (1, 0),
            (9, 0),
            (10, 2),
            (18, 9),
            (18, 17),
            (19, 0),
            (20, 11),
            (38, 10),
            (38, 30),
        )
    ),
    ("DATE", ["'0001-01-01'", "'2024-02-29'", "'9999-12-31'", "'1970-01-01'"]),
    ("TINYINT", ["-128", "127"]),
    ("TINYINT UNSIGNED", ["255"]),
    ("SMALLINT", ["-32768"]),
    ("SMALLINT UNSIGNED", ["65535"]),
    ("MEDIUMINT", ["-1"]),
    ("INT", ["-1"]),
    ("INT UNSIGNED", ["4294967295"]),
    ("BIGINT", ["-9223372036854775808"]),
    ("BIGINT UNSIGNED", ["18446744073709551615"]),
    ("TINYINT(1)", ["1", "0"]),
    ("FLOAT", ["0.1", "-3.5e38/10"]),
    ("DOUBLE", ["0.1", "-1e308"]),
    ("BIT(1)", ["b'0'", "b'1'"]),
    ("BIT(8)", ["255"]),
    ("BIT(64)", ["1"]),
    ("VARCHAR(255) CHARACTER SET ascii", ["'a'"]),
    ("VARCHAR(300)", ["REPEAT('é', 300)"]),
    ("CHAR(200)", ["'ab '", "'é'"]),
    ("VARBINARY(300)", ["REPEAT('a', 300)", "x'6100'", "''"]),
    ("BINARY(4)", ["x'61000000'", "x'00000000'"]),
    ("MEDIUMTEXT", ["REPEAT('x', 70000)"]),
    ("LONGBLOB", ["REPEAT('x', 70000)", "x'00'"]),
    ("ENUM('a','é') CHARACTER SET latin1", ["'é'"]),
    ("SET('é','b','c') CHARACTER SET latin1", ["'é,c'", "''"]),
    (f"ENUM({listed('m', 300)})", ["'m299'", "'m0'"]),
    (f"SET({listed('s', 64)})", ["'s0,s63'"]),
    ("VARCHAR(9) CHARACTER SET swe7", ["'{'"]),
    ("TEXT CHARACTER SET gbk", ["'中文'"]),
    ("TEXT CHARACTER SET cp1251", ["'Ж'"]),
    (
        "UUID",
        [
            "'00000000-0000-0000-0000-000000000000'",
            "'0190163d-8694-739b-aea5-966c26f8ad91'",
            "'f47ac10b-58cc-4372-a567-0e02b2c3d479'",
            "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
            "'6ccd780c-baba-1026-9564-5b8c656024db'",
        ],
    ),
    ("INET6", ["'::ffff:1.2.3.4'", "'2001:db8::ff00:42:8329'", "'::'"]),
    ("INET4", ["'0.0.0.0'", "'255.255.255.0'"]),
]


def cases() -> list[tuple[str, list[str]]]:
    """Every declared type with literals: those of the tables of docs/mysql.md, and more."""
    documented = [(declared, [literal]) for row in READ.values() for declared, literal, *_ in row]
    return [*documented, *MORE]


def as_log(shop: Shop, **options: Any) -> pa.Table:
    """The table's rows as inserted according to the log since its beginning."""
    feed = feed_of(shop, **options)
    (start,) = feed.earliest()
    (end,) = feed.end()
    names = feed.schema().names[:-3]
    return (
        pa.Table.from_batches(batches(feed, start, end), feed.schema())
        .select(names)
        .combine_chunks()
    )


def as_log_and_batch(shop: Shop, **options: Any) -> tuple[pa.Table, pa.Table]:
    return as_log(shop, **options).sort_by("id"), shop.read(**options).sort_by("id")


def test_types_come_as_a_read_brings_them(logged: Shop) -> None:
    """A column per type: its values, and NULL."""
    found = cases()
    height = max(len(literals) for _, literals in found)
    columns = ", ".join(f"c{number} {declared} NULL" for number, (declared, _) in enumerate(found))
    made = [
        "("
        + ", ".join([str(row), *(each[row] if row < len(each) else "NULL" for _, each in found)])
        + ")"
        for row in range(height + 1)
    ]
    logged.sql(
        f"SET sql_mode = ''; CREATE TABLE t (id INT PRIMARY KEY, {columns}); "
        f"INSERT INTO t VALUES {', '.join(made)}"
    )
    log, batch = as_log_and_batch(logged)
    assert log.schema == batch.schema
    for number, (declared, _) in enumerate(found):
        assert log[f"c{number}"].to_pylist() == batch[f"c{number}"].to_pylist(), declared
        assert batch[f"c{number}"].null_count < height + 1, declared


def test_types_of_new_columns_come_as_a_read_brings_them(logged: Shop) -> None:
    """The first table of docs/mysql.md: what this package itself writes."""
    written = [case for each in WRITTEN.values() for case in each]
    height = max(len(values) for _, _, _, values, _ in written) + 1
    table = pa.table(
        {
            name: pa.array([*values, *[None] * (height - len(values))], kind)
            for name, kind, _, values, _ in written
        }
    ).append_column("id", pa.array(range(height), pa.int32()))
    logged.write(table)
    log, batch = as_log_and_batch(logged)
    assert log.equals(batch)
    log, batch = as_log_and_batch(logged, tinyInt1IsBit="false", columns="id,bool,binary")
    assert log.equals(batch)


def test_what_spark_cannot_hold_is_refused_as_in_a_read(logged: Shop) -> None:
    """One column at a time: the error of the feed is that of the reader."""
    cases = [case for each in REFUSED.values() for case in each]
    columns = ", ".join(f"c{number} {declared}" for number, (declared, _, _) in enumerate(cases))
    values = ", ".join(literal for _, literal, _ in cases)
    logged.sql(
        f"SET sql_mode = ''; CREATE TABLE t (id INT PRIMARY KEY, {columns}); INSERT INTO t VALUES (1, {values})"
    )
    for number, (declared, literal, why) in enumerate(cases):
        name = f"c{number}"
        with pytest.raises(
            SourceError, match=rf"column '{name}', declared .*{why}.*customSchema"
        ) as of_log:
            as_log(logged, columns=f"id,{name}")
        with pytest.raises(SourceError) as of_batch:
            logged.read(columns=f"id,{name}")
        place = re.escape(" (in its binary log)")
        assert re.sub(place, "", str(of_log.value)) == str(of_batch.value), (declared, literal)
    wanted = ", ".join(f"c{number} STRING" for number in range(len(cases)))
    assert as_log(logged, customSchema=wanted).equals(logged.read(customSchema=wanted))
    zeros = ",".join(
        f"c{number}" for number, (_, literal, _) in enumerate(cases) if "0000-00" in literal
    )
    assert as_log(logged, columns=zeros, zeroDates="null").equals(
        logged.read(columns=zeros, zeroDates="null")
    )


def test_other_types_of_the_users_come_as_a_read_brings_them(logged: Shop) -> None:
    declared = {
        "i": ("INT", "-5"),
        "m": ("MEDIUMINT UNSIGNED", "16777215"),
        "d": ("DECIMAL(65,30)", "-1.5"),
        "p": ("DECIMAL(9,3)", "0.001"),
        "t": ("DATETIME(3)", "'2024-01-02 03:04:05.678'"),
        "y": ("YEAR", "0"),
        "z": ("TIMESTAMP(2)", "'2024-01-02 03:04:05.67'"),
        "h": ("TIME(4)", "'-12:34:56.7891'"),
        "b": ("BIT(9)", "300"),
        "v": ("VARCHAR(9)", "'42'"),
        "a": ("DATE", "'2024-01-02'"),
    }
    logged.sql(
        f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(f'{n} {d}' for n, (d, _) in declared.items())}); "
        f"INSERT INTO t VALUES (1, {', '.join(text for _, text in declared.values())})"
    )
    texts = ", ".join(f"{name} STRING" for name in "mdtzhba")
    wanted = f"i BIGINT, p DECIMAL(12,4), y INT, v INT, {texts}"
    log, batch = as_log_and_batch(logged, customSchema=wanted)
    assert log.to_pylist() == batch.to_pylist()


def test_a_type_that_is_not_read_is_refused_by_column_and_can_be_left_out(logged: Shop) -> None:
    unread = [each for types in UNREAD.values() for each in types]
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(unread))
    logged.sql(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, item TEXT)")
    for number in range(len(unread)):
        with pytest.raises(SchemaError, match=f"column 'c{number}' is"):
            feed_of(logged, columns=f"id,c{number}")
    feed = feed_of(logged, columns="id,item")
    (token,) = feed.now()
    logged.sql(
        "INSERT INTO t (id, c0, c2, c3, item) VALUES (1, 1.5, POINT(1, 2), POINT(1, 2), 'x')"
    )
    assert brief(all_after(feed, token)) == [("insert", 1, "x")]


def test_a_compressed_log_is_read(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    try:
        logged.sql("SET GLOBAL log_bin_compress = 1")
        logged.sql(
            "INSERT INTO t SELECT seq, REPEAT('x', 20), 0 FROM seq_1_to_1000; UPDATE t SET n = 1; DELETE FROM t; "
            f"TRUNCATE t {' ' * 500}"
        )
    finally:
        logged.sql("SET GLOBAL log_bin_compress = DEFAULT")
    found = all_after(feed, token)
    assert [found[place]["_op"] for place in (0, 1000, 2000, 3000)] == [
        "insert",
        "update",
        "delete",
        "truncate",
    ]


def test_generated_columns(logged: Shop) -> None:
    logged.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, item VARCHAR(9), stored INT AS (id * 2) STORED, "
        "virtual INT AS (id * 3) VIRTUAL, hidden INT INVISIBLE DEFAULT 5)"
    )
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql("INSERT INTO t (id, item) VALUES (1, 'a')")
    (row,) = all_after(feed, token)
    assert {name: row[name] for name in feed.schema().names[:-3]} == logged.read().to_pylist()[0]


def test_a_key_of_several_columns_and_none(logged: Shop) -> None:
    logged.sql(
        "CREATE TABLE t (id INT, item VARCHAR(9), n INT, PRIMARY KEY (item, id)); "
        "CREATE TABLE keyless (id INT, item TEXT)"
    )
    feed, other = feed_of(logged, columns="id,n"), feed_of(logged, "keyless")
    (token,) = feed.now()
    logged.sql(
        "INSERT INTO t VALUES (1, 'a', 0); UPDATE t SET n = 1; UPDATE t SET item = 'b'; "
        "INSERT INTO keyless VALUES (1, 'a'); UPDATE keyless SET id = 2"
    )
    assert [(row["_op"], row["id"]) for row in all_after(feed, token)] == [
        ("insert", 1),
        ("update", 1),
        ("delete", 1),
        ("update", 1),
    ]
    assert brief(all_after(other, token)) == [
        ("insert", 1, "a"),
        ("delete", 1, "a"),
        ("update", 2, "a"),
    ]


@pytest.mark.parametrize(
    ("columns", "key", "change"),
    [
        ("id INT, item VARCHAR(9)", "id", "UPDATE u SET id = 2"),
        ("id INT, item VARCHAR(9)", "item", "UPDATE u SET item = '7'"),
        ("id INT PRIMARY KEY, item VARCHAR(9) UNIQUE", "item", "UPDATE u SET item = '7'"),
        ("id INT PRIMARY KEY, item VARCHAR(9), UNIQUE (item, id)", "id", "UPDATE u SET id = 2"),
    ],
)
def test_the_row_of_an_old_key_is_deleted_whichever_columns_are_the_targets_key(
    logged: Shop, columns: str, key: str, change: str
) -> None:
    logged.sql(f"CREATE TABLE u ({columns}); INSERT INTO u VALUES (1, '5')")
    feed = feed_of(logged, "u")
    (token,) = feed.now()
    copy: dict[str, dict[str, Any]] = {"5" if key == "item" else "1": {"id": 1, "item": "5"}}
    logged.sql(f"{change}; INSERT INTO u VALUES (9, '9'); DELETE FROM u WHERE id = 9")
    for row in all_after(feed, token):
        if row["_op"] == "delete":
            copy.pop(str(row[key]), None)
        else:
            copy[str(row[key])] = {"id": row["id"], "item": row["item"]}
    found = logged.read("u").to_pylist()
    assert copy == {str(row[key]): row for row in found}


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DROP TABLE t", "drops it"),
        ("RENAME TABLE t TO u", "renames it"),
        (
            "CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, item VARCHAR(20), n DECIMAL(8,2))",
            "creates it again",
        ),
        ("ALTER TABLE t DROP PARTITION p", "rows of whole partitions"),
        (
            "SET SESSION binlog_format = 'STATEMENT'; INSERT INTO t VALUES (2, 'x', 0)",
            "by a statement",
        ),
        (
            "SET SESSION binlog_row_image = 'MINIMAL'; UPDATE t SET item = 'y'",
            "SET GLOBAL binlog_row_image",
        ),
        (
            "XA START 'a'; INSERT INTO t VALUES (3, 'x', 0); XA END 'a'; XA PREPARE 'a'; XA COMMIT 'a'",
            "XA transaction",
        ),
    ],
)
def test_what_the_log_does_not_tell_in_rows_stops_the_feed(
    logged: Shop, statement: str, why: str
) -> None:
    plain(logged)
    logged.sql(
        "ALTER TABLE t PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (9), PARTITION q VALUES LESS THAN (99)); "
        "INSERT INTO t VALUES (1, 'x', 0)"
    )
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql(statement)
    (end,) = feed.end()
    with pytest.raises(SourceError, match=rf"(?s){why}.*Reset the tunnel"):
        rows(feed, token, end)


BY_STATEMENT = "SET STATEMENT binlog_format='STATEMENT' FOR"
STATEMENTS_OF_ANY_FORM = [
    "SET STATEMENT max_statement_time=60 FOR TRUNCATE TABLE t",
    "/* by cron */ TRUNCATE /*!50000 TABLE */ t; TRUNCATE .t",
    "SET SESSION sql_mode = 'ANSI_QUOTES'; TRUNCATE \"t\"",
    "EXECUTE IMMEDIATE 'TRUNCATE t'",
    "/*!999999 TRUNCATE t */ CREATE /*!999999 OR REPLACE */ TABLE IF NOT EXISTS t (id INT)",
    "CREATE PROCEDURE p() TRUNCATE t; CALL p()",
    "CREATE TRIGGER g AFTER INSERT ON w FOR EACH ROW DELETE FROM t WHERE id < 9; INSERT INTO w VALUES (7)",
    "CREATE VIEW v AS SELECT * FROM t; UPDATE v SET item = 'v'; DROP VIEW v",
    "ALTER TABLE t ADD KEY (item), COMMENT = 'x'; OPTIMIZE TABLE t; ANALYZE TABLE t",
    "ALTER TABLE t MODIFY item VARCHAR(30) NOT NULL, ENGINE=MyISAM; ALTER TABLE t REMOVE PARTITIONING",
    "CREATE DATABASE {base}_o; USE {base}_o; CREATE TABLE t (id INT); TRUNCATE t; DROP TABLE t; DROP DATABASE {base}_o",
    "LOAD DATA INFILE '{file}' INTO TABLE t",
    "DROP TABLE IF EXISTS other.t, u; RENAME TABLE w TO x",
]
STOPPED = [
    ("SET STATEMENT lock_wait_timeout=5 FOR RENAME TABLE t TO u", "renames it"),
    ("SET STATEMENT lock_wait_timeout=5 FOR CREATE OR REPLACE TABLE t LIKE w", "creates it again"),
    (f"{BY_STATEMENT} UPDATE t SET item = 'z'", "by a statement"),
    (f"{BY_STATEMENT} DELETE t, w FROM t JOIN w USING (id)", "by a statement"),
    (f"{BY_STATEMENT} LOAD DATA INFILE '{{file}}' INTO TABLE t", "by a statement"),
    ("/* x */ DROP TABLE /* y */ w, t", "drops it"),
    ("ALTER TABLE t REMOVE PARTITIONING; ALTER IGNORE TABLE t ADD UNIQUE (n)", "IGNORE"),
    ("ALTER TABLE t CONVERT PARTITION p TO TABLE old", "rows of whole partitions"),
    (
        "CREATE TABLE u LIKE t; ALTER TABLE u REMOVE PARTITIONING; ALTER TABLE t EXCHANGE PARTITION p WITH TABLE u",
        "rows of whole partitions",
    ),
    ("SET STATEMENT sql_mode='' FOR ALTER TABLE t MODIFY item VARCHAR(1)", "column 'item'"),
    ("ALTER TABLE t DROP item, ADD item VARCHAR(20) AFTER id", "column 'item'"),
    ("ALTER TABLE t ADD SYSTEM VERSIONING; DELETE FROM t", "history"),
]


def partitioned(shop: Shop) -> None:
    shop.sql(
        "CREATE TABLE t (id INT PRIMARY KEY, item VARCHAR(20), n DECIMAL(8,2)) PARTITION BY RANGE (id) "
        "(PARTITION p VALUES LESS THAN (9), PARTITION q VALUES LESS THAN (99)); "
        "INSERT INTO t VALUES (1, 'aa', 1), (2, 'bb', 1), (50, 'cc', 2); "
        "CREATE TABLE w (id INT PRIMARY KEY); INSERT INTO w VALUES (1)"
    )


def items(shop: Shop) -> dict[str, str]:
    return {row[0]: row[1] for row in shop.rows("SELECT id, item FROM t")}


@pytest.fixture
def loaded() -> Iterator[Path]:
    """A file that the server may read."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        file = Path(folder) / "rows"
        file.write_text("7\tx\t0\n")
        yield file


@pytest.mark.parametrize("statement", STATEMENTS_OF_ANY_FORM)
def test_a_copy_is_equal_behind_a_statement_of_any_form(
    logged: Shop, loaded: Path, statement: str
) -> None:
    partitioned(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    copy: dict[str, Any] = items(logged)
    logged.sql(statement.format(base=logged.database, file=loaded))
    logged.sql("INSERT INTO t VALUES (8, 'n', 7)")
    for row in all_after(feed, token):
        if row["_op"] == "truncate":
            copy.clear()
        elif row["_op"] == "delete":
            del copy[str(row["id"])]
        else:
            copy[str(row["id"])] = row["item"]
    assert copy == items(logged)


@pytest.mark.parametrize(("statement", "why"), STOPPED)
def test_a_statement_that_changes_rows_without_their_images_stops_the_feed(
    logged: Shop, loaded: Path, statement: str, why: str
) -> None:
    partitioned(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql(statement.format(file=loaded))
    with pytest.raises(ChannelError, match=rf"table '.*t' .*{why}"):
        rows(feed, token, feed.end()[0])


def test_a_statement_in_another_character_set_is_read(logged: Shop) -> None:
    logged.sql("CREATE TABLE `größe` (id INT PRIMARY KEY, item TEXT, n INT)")
    feed = feed_of(logged, "größe")
    (token,) = feed.now()
    with closing(
        pymysql.connect(
            host="127.0.0.1",
            port=logged.server.port,
            user=logged.server.user,
            password=logged.server.password,
            database=logged.database,
            charset="latin1",
        )
    ) as other:
        other.cursor().execute("RENAME TABLE größe TO größer")
    with pytest.raises(SourceError, match=r"renames it .'RENAME TABLE größe"):
        rows(feed, token, feed.end()[0])


@pytest.mark.parametrize("logs", ["1", "0"], ids=["logged", "not logged"])
def test_a_foreign_key_that_appears_later_stops_the_feed(logged: Shop, logs: str) -> None:
    plain(logged)
    logged.sql("CREATE TABLE p (id INT PRIMARY KEY); INSERT INTO p VALUES (1)")
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql(
        f"INSERT INTO t VALUES (1, 'x', 0); SET sql_log_bin = {logs}; "
        "ALTER TABLE t ADD CONSTRAINT c FOREIGN KEY (id) REFERENCES p (id) ON DELETE CASCADE; "
        "SET sql_log_bin = 1; DELETE FROM p"
    )
    with pytest.raises(SourceError, match=r"foreign key .c. of .* ON DELETE CASCADE"):
        feed.latest(token, NO_LIMIT)
    if logs == "1":
        logged.sql("ALTER TABLE t DROP FOREIGN KEY c")
        with pytest.raises(SourceError, match="gives it a foreign key with ON DELETE CASCADE"):
            all_after(feed, token)


@pytest.mark.parametrize("engine", ["MRG_MyISAM UNION=(u) INSERT_METHOD=LAST", "CSV"])
def test_an_engine_whose_rows_are_not_those_of_the_log_is_refused(
    logged: Shop, engine: str
) -> None:
    logged.sql("CREATE TABLE u (id INT NOT NULL) ENGINE=MyISAM")
    logged.sql(f"CREATE TABLE t (id INT NOT NULL) ENGINE={engine}")
    with pytest.raises(SourceError, match="has the engine"):
        feed_of(logged)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ADD note TEXT", "new column 'note'"),
        ("DROP n", "column 'n'"),
        ("MODIFY n TEXT", "column 'n'"),
    ],
)
def test_a_changed_schema_names_the_column(logged: Shop, change: str, message: str) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql(f"ALTER TABLE t {change}; INSERT INTO t (id) VALUES (1)")
    with pytest.raises(SchemaError, match=message):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(SchemaError, match=message):
        rows(feed, token, feed.end()[0])


def evolving(shop: Shop, **options: Any) -> ChangeFeed:
    return shop.reader(binlog="true", **options).feed(FeedOptions(evolves=True))


def test_columns_that_change_are_taken_by_the_next_start(logged: Shop) -> None:
    """Rows of the log from before have NULL in a column that is new, and none of one that was dropped."""
    plain(logged)
    feed = evolving(logged)
    (token,) = feed.now()
    logged.sql(
        "INSERT INTO t VALUES (1, 'a', 1); ALTER TABLE t ADD note TEXT FIRST; INSERT INTO t VALUES ('x', 2, 'b', 1)"
    )
    with pytest.raises(SchemaError, match=r"new column 'note'.*Start it again"):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(SchemaError, match=r"new column 'note'.*Start it again"):
        rows(feed, token, feed.end()[0])  # a range that was planned just before
    feed = evolving(logged)
    found = rows(feed, token, feed.latest(token, NO_LIMIT))
    assert [(row["id"], row["item"], row["note"]) for row in found] == [
        (1, "a", None),
        (2, "b", "x"),
    ]
    logged.sql(
        "ALTER TABLE t DROP item; ALTER TABLE t MODIFY id BIGINT, MODIFY n DECIMAL(12,3); "
        "ALTER TABLE t RENAME COLUMN note TO remark; "
        "INSERT INTO t VALUES ('y', 5000000000, 2.125); UPDATE t SET id = 7 WHERE id = 2; TRUNCATE t"
    )
    assert [row["item"] for row in rows(feed, token, {"gtid": found[-1]["_lsn"]})] == ["a", "b"]
    with pytest.raises(SchemaError, match="lost column 'note'"):
        feed.latest(token, NO_LIMIT)
    feed = evolving(logged)
    found = rows(feed, token, feed.latest(token, NO_LIMIT))
    assert [(row["_op"], row["id"], row["remark"], str(row["n"])) for row in found] == [
        ("insert", 1, None, "1.000"),
        ("insert", 2, None, "1.000"),
        ("insert", 5_000_000_000, "y", "2.125"),
        ("delete", 2, "x", "1.000"),
        ("update", 7, "x", "1.000"),
        ("truncate", None, None, "None"),
    ]
    logged.sql("INSERT INTO t VALUES ('z', 8, 1); ALTER TABLE t MODIFY n INT")
    with pytest.raises(SchemaError, match="column 'n' of another type"):
        all_after(evolving(logged), token)


def test_columns_that_change_are_ignored_without_a_restart(
    logged: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    plain(logged)
    reader = logged.reader(binlog="true")
    feed = reader.feed(FeedOptions(ignores=True))
    (token,) = feed.now()
    logged.sql(
        "INSERT INTO t VALUES (1, 'a', 1); ALTER TABLE t ADD note TEXT FIRST; INSERT INTO t VALUES ('x', 2, 'b', 1); "
        "ALTER TABLE t DROP item; INSERT INTO t VALUES ('y', 3, 2); UPDATE t SET id = 4 WHERE id = 2"
    )
    end = feed.latest(token, NO_LIMIT)
    found = rows(feed, token, end)
    assert [(row["_op"], row["id"], row["item"]) for row in found] == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("insert", 3, None),
        ("delete", 2, None),
        ("update", 4, None),
    ]
    assert "note" not in found[0]
    assert sorted(
        each.getMessage().split("column ")[1].split(" ")[0] for each in caplog.records
    ) == [
        "'item'",
        "'note'",
    ]
    logged.sql("ALTER TABLE t MODIFY id BIGINT; INSERT INTO t VALUES ('z', 5000000000, 1)")
    with pytest.raises(SchemaError, match=r"column 'id'.*Start it again"):
        feed.latest(end, NO_LIMIT)
    again = reader.feed(FeedOptions(ignores=True))
    assert [row["id"] for row in rows(again, end, again.latest(end, NO_LIMIT))] == [5_000_000_000]


def test_types_that_widen_come_as_the_table_has_them_by_now(logged: Shop) -> None:
    before = {
        "a": "TINYINT",
        "b": "SMALLINT UNSIGNED",
        "c": "MEDIUMINT",
        "d": "VARCHAR(9)",
        "e": "CHAR(9)",
        "f": "INT",
    }
    after = {
        "a": "SMALLINT",
        "b": "BIGINT UNSIGNED",
        "c": "BIGINT",
        "d": "TEXT",
        "e": "VARCHAR(300)",
        "f": "BIGINT",
    }
    logged.sql(f"CREATE TABLE t (id INT PRIMARY KEY, {', '.join(map(' '.join, before.items()))})")
    (start,) = evolving(logged).now()
    logged.sql(
        "INSERT INTO t VALUES (1, -128, 65535, -8388608, 'é', 'é', -5), (2, 1, 1, 1, 'x', 'x', NULL)"
    )
    logged.sql(
        f"ALTER TABLE t {', '.join(f'MODIFY {name} {kind}' for name, kind in after.items())}"
    )
    feed = evolving(logged)
    found = pa.Table.from_batches(batches(feed, start, feed.end()[0]), feed.schema())
    assert (
        found.select(feed.schema().names[:-3]).sort_by("id").to_pylist()
        == logged.read().sort_by("id").to_pylist()
    )


@contextmanager
def setting(shop: Shop, name: str, value: str) -> Iterator[None]:
    old = shop.sql(f"SELECT @@global.{name}")
    shop.sql(f"SET GLOBAL {name} = '{value}'")
    try:
        yield
    finally:
        shop.sql(f"SET GLOBAL {name} = '{old}'")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"),
    ],
)
def test_a_server_that_does_not_log_whole_rows_is_told_the_statement(
    logged: Shop, name: str, value: str
) -> None:
    plain(logged)
    with (
        setting(logged, name, value),
        pytest.raises(SourceError, match=f"SET GLOBAL {name} = '(ROW|FULL)'"),
    ):
        feed_of(logged)


def test_changes_without_names_of_columns_are_told_the_statement(logged: Shop) -> None:
    """A session from before the setting was changed, or a time in between."""
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    with setting(logged, "binlog_row_metadata", "NO_LOG"):
        logged.sql("INSERT INTO t VALUES (1, 'x', 0)")
    with pytest.raises(SourceError, match="SET GLOBAL binlog_row_metadata = 'FULL'"):
        all_after(feed, token)


def test_a_server_without_a_log_is_told(shop: Shop) -> None:
    plain(shop)
    with pytest.raises(SourceError, match="writes no binary log"):
        feed_of(shop)


def test_missing_rights_are_told_with_the_statement(logged: Shop) -> None:
    plain(logged)
    user = f"u{logged.database[-8:]}"
    logged.sql(
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'p'; GRANT SELECT ON {logged.database}.* TO {user}@'127.0.0.1'"
    )
    with pytest.raises(SourceError, match="GRANT REPLICATION SLAVE, REPLICATION CLIENT"):
        feed_of(logged, user=user, password="p")
    logged.sql(f"GRANT REPLICATION SLAVE ON *.* TO {user}@'127.0.0.1'")
    feed = feed_of(logged, user=user, password="p")
    (token,) = feed.now()
    logged.sql("INSERT INTO t VALUES (1, 'a', 0)")
    assert brief(all_after(feed, token)) == [("insert", 1, "a")]
    assert feed.lag(token).nbytes is None
    with pytest.raises(SourceError, match="GRANT REPLICATION SLAVE, REPLICATION CLIENT"):
        feed.earliest()


def test_what_is_no_plain_table_is_refused(logged: Shop) -> None:
    plain(logged)
    logged.sql(
        "CREATE VIEW v AS SELECT * FROM t; CREATE TABLE s (id INT PRIMARY KEY) WITH SYSTEM VERSIONING"
    )
    with pytest.raises(OptionError, match="is a view"):
        feed_of(logged, "v")
    with pytest.raises(OptionError, match="is a system versioned"):
        feed_of(logged, "s")
    for options in ({"where": "id > 1"}, {"timestampsAs": "local"}):
        with pytest.raises(OptionError, match=r"binary log|binlog"):
            feed_of(logged, **options)
    with pytest.raises(OptionError, match="option 'binlog' true"):
        logged.reader().feed(FeedOptions())
    with pytest.raises(OptionError, match="two ways to follow"):
        logged.reader(binlog="true").feed(FeedOptions(cursor_column="id"))


@pytest.mark.parametrize("rule", ["ON DELETE CASCADE", "ON UPDATE SET NULL"])
def test_foreign_keys_whose_cascades_are_not_logged_are_refused(logged: Shop, rule: str) -> None:
    plain(logged)
    logged.sql(
        f"CREATE TABLE child (id INT PRIMARY KEY, t INT, CONSTRAINT of_t FOREIGN KEY (t) REFERENCES t (id) {rule})"
    )
    with pytest.raises(SourceError, match=f"foreign key 'of_t'.*{rule}.*DROP FOREIGN KEY `of_t`"):
        feed_of(logged, "child")
    feed_of(logged)


def test_purged_logs_are_told(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql("INSERT INTO t VALUES (1, 'x', 0); FLUSH BINARY LOGS; FLUSH BINARY LOGS")
    last = logged.rows("SHOW BINARY LOGS")[-1][0]
    until = time.monotonic() + 30
    while len(logged.rows(f"PURGE BINARY LOGS TO '{last}'; SHOW BINARY LOGS")) > 1:
        assert time.monotonic() < until, "the server still uses its older logs"
        time.sleep(0.1)
    with pytest.raises(
        SourceError, match=r"no longer has the changes after .*purged.*Reset the tunnel"
    ):
        feed.latest(token, NO_LIMIT)
    with pytest.raises(SourceError, match="purged"):
        rows(feed, token, feed.end()[0])
    assert feed.earliest() == feed.end()


@pytest.mark.parametrize(
    "token", [{}, {"cursor": 1}, {"gtid": "x"}, {"gtid": 5}, {"gtid": "0-1-2", "x": 1}]
)
def test_a_damaged_token_is_told(logged: Shop, token: dict[str, Any]) -> None:
    plain(logged)
    with pytest.raises(SourceError, match="not a position in this server's binary log"):
        feed_of(logged).latest(token, NO_LIMIT)


def test_an_offset_from_the_future_or_another_server_is_told(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (end,) = feed.end()
    number = int(end["gtid"].rpartition("-")[2])
    for token in ({"gtid": f"0-1-{number + 100}"}, {"gtid": "7-1-1"}):
        with pytest.raises(SourceError, match="from the future, of another server"):
            feed.latest(token, NO_LIMIT)
    with pytest.raises(SourceError, match="the binary log ends before"):
        rows(feed, end, {"gtid": f"0-1-{number + 100}"})


def test_lag_is_told(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    assert feed.lag(token).rows == 0
    logged.sql("INSERT INTO t SELECT seq, 'x', 0 FROM seq_1_to_1000")
    lag = feed.lag(token)
    assert lag.nbytes is not None
    assert 10_000 < lag.nbytes < 100_000
    assert lag.rows == 1000
    assert lag.seconds is not None
    assert 0 <= lag.seconds < 60


def test_a_position_does_not_stay_behind_the_log_of_other_tables(logged: Shop) -> None:
    """Else its logs would be purged while there is nothing to read, and each look would begin further back."""
    plain(logged)
    logged.sql("CREATE TABLE other (id INT PRIMARY KEY, c LONGBLOB)")
    feed = feed_of(logged)
    (token,) = feed.now()
    looked = []
    for number in range(5):
        logged.sql(f"INSERT INTO other VALUES ({number}, REPEAT('x', 5 << 20))")
        looked.append(feed.latest(token, NO_LIMIT))
    assert looked[0] == token, "an empty range is not worth a checkpoint"
    assert looked[-1] == feed.end()[0] or looked[-2] != token
    assert rows(feed, token, looked[-1] if looked[-1] != token else looked[-2]) == []


def test_a_transaction_of_several_domains_is_in_its_range(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql(
        "INSERT INTO t VALUES (1, 'a', 0); SET SESSION gtid_domain_id = 5; INSERT INTO t VALUES (2, 'b', 0)"
    )
    middle = feed.latest(token, NO_LIMIT)
    assert middle["gtid"].count(",") == 1
    logged.sql("INSERT INTO t VALUES (3, 'c', 0)")
    assert brief(rows(feed, token, middle)) == [("insert", 1, "a"), ("insert", 2, "b")]
    assert brief(all_after(feed, middle)) == [("insert", 3, "c")]


def test_a_lost_connection_passes(logged: Shop) -> None:
    plain(logged)
    feed = feed_of(logged)
    (token,) = feed.now()
    logged.sql("INSERT INTO t SELECT seq, REPEAT('x', 20), 0 FROM seq_1_to_400000")
    end = feed.latest(token, NO_LIMIT)
    (split,) = feed.changes(token, end)
    reading = feed.read(split)
    first = next(reading)
    dumping = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
    (session,) = {line for (line,) in logged.rows(dumping)}
    logged.sql(f"KILL {session}")
    with pytest.raises(SourceError) as raised:
        list(reading)
    assert feed.is_passing(raised.value)
    assert sum(batch.num_rows for batch in batches(feed, token, end)) == 400_000 > first.num_rows
    assert logged.server.connections() == 0, "no connection is left behind"


def test_it_is_one_of_this_connectors_sessions(
    logged: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So all that is checked of a login, of TLS and of files that a server asks for holds for the log's connection."""
    from spark_channel.connectors.mysql.session.guarded_connection import GuardedConnection

    plain(logged)
    sent: list[tuple[type, int]] = []
    plainly = GuardedConnection._execute_command

    def noted(self: GuardedConnection, command: int, sql: Any) -> None:
        sent.append((type(self), command))
        plainly(self, command, sql)

    monkeypatch.setattr(GuardedConnection, "_execute_command", noted)
    feed_of(logged)
    assert (GuardedConnection, 0x12) in sent
