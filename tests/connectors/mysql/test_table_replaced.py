"""A table that is swapped, altered or made again between two statements of a limited read: the read ends by name."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from spark_channel.connectors.mysql.session import MysqlSession
from spark_channel.errors import SourceError
from tests.connectors.mysql.shop import Shop, own_shop
from tests.connectors.sql.changing import acting, check_change, check_no_change, limited
from tests.servers.mariadb import MariadbServer

_MADE = """
DROP TABLE IF EXISTS t, other, old;
CREATE TABLE t (id int PRIMARY KEY, at datetime, v varchar(9));
INSERT INTO t WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 40)
  SELECT i, '2024-01-01', 'old' FROM r;
CREATE TABLE other LIKE t;
INSERT INTO other SELECT id, at, 'new' FROM t;
"""
_UNTOLD = """
CREATE USER IF NOT EXISTS etl@'127.0.0.1' IDENTIFIED BY 'p'; GRANT SELECT ON {database}.* TO etl@'127.0.0.1'
"""
"""A login without PROCESS is told the second in which a table was made or renamed, and not its number."""
CHANGES = {
    "swap": ("RENAME TABLE t TO old, other TO t", "another table took its name"),
    "made again": (
        "DROP TABLE t; CREATE TABLE t LIKE other; INSERT INTO t SELECT * FROM other",
        "another table took its name",
    ),
    "an empty one": (
        "DROP TABLE t; CREATE TABLE t LIKE other",
        "another table took its name",
    ),
    "truncate": (
        "TRUNCATE t; INSERT INTO t SELECT * FROM other",
        "it was emptied by TRUNCATE",
    ),
    "dropped": ("DROP TABLE t", "it was dropped or renamed"),
    "type": (
        "ALTER TABLE t MODIFY at timestamp NULL",
        "the type of column 'at' was changed from datetime to timestamp",
    ),
    "column": ("ALTER TABLE t CHANGE v w varchar(9)", "column 'v' was dropped or renamed"),
}
_TWINS = """
CREATE TABLE {t} (id int PRIMARY KEY, at datetime, v varchar(9)) {form};
INSERT INTO {t} WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 40)
  SELECT i, '2024-01-01', 'old' FROM r;
CREATE TABLE {other} LIKE {t};
INSERT INTO {other} SELECT id, at, 'new' FROM {t};
"""
_PLAIN = "COMMENT 'x'"
_PARTED = (
    "PARTITION BY RANGE (id) "
    "(PARTITION `p ö` VALUES LESS THAN (20), PARTITION b VALUES LESS THAN MAXVALUE)"
)
_NAMES = ("t", "T", "ä#p#b", "q`'\"\\/", "名")
_EXCHANGE = (
    "ALTER TABLE {other} REMOVE PARTITIONING; DELETE FROM {other} WHERE id >= 20; "
    "ALTER TABLE {t} EXCHANGE PARTITION `p ö` WITH TABLE {other}"
)
_DIVIDE = (
    "ALTER TABLE {t} REORGANIZE PARTITION b INTO "
    "(PARTITION b VALUES LESS THAN (30), PARTITION c VALUES LESS THAN MAXVALUE)"
)
OTHER_TABLE = {
    "swap": (_PLAIN, "RENAME TABLE {t} TO old, {other} TO {t}"),
    "made again": (_PLAIN, "DROP TABLE {t}; CREATE TABLE {t} LIKE {other}"),
    "emptied": (_PLAIN, "TRUNCATE {t}"),
    "rebuilt": (_PLAIN, "ALTER TABLE {t} FORCE"),
    "optimized": (_PLAIN, "OPTIMIZE TABLE {t}"),
    "parts swap": (_PARTED, "RENAME TABLE {t} TO old, {other} TO {t}"),
    "part emptied": (_PARTED, "ALTER TABLE {t} TRUNCATE PARTITION `p ö`"),
    "part rebuilt": (_PARTED, "ALTER TABLE {t} REBUILD PARTITION b"),
    "part exchanged": (_PARTED, _EXCHANGE),
    "part divided": (_PARTED, _DIVIDE),
}
SAME_TABLE = (
    "ANALYZE TABLE {t}",
    "DELETE FROM {t} WHERE id < 30; INSERT INTO {t} SELECT id + 100, at, v FROM {other}",
    "FLUSH TABLES {t}",
    "TRUNCATE {other}",
    "DROP TABLE {other}",
)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_statements_ends_the_read(shop: Shop, change: str) -> None:
    act, says = CHANGES[change]
    check_change(
        lambda: shop.reader("t", statementSeconds="5"),
        lambda: shop.sql(_MADE),
        lambda: shop.sql(act),
        says,
    )


@pytest.mark.parametrize("change", ["swap", "made again", "dropped", "type", "column"])
def test_a_login_without_process_is_told_by_the_time(shop: Shop, change: str) -> None:
    act, says = CHANGES[change]
    shop.sql(_UNTOLD.format(database=shop.database))
    try:
        login = {"user": "etl", "password": "p"}
        check_change(
            lambda: shop.reader("t", statementSeconds="5", **login),
            lambda: shop.sql(
                _MADE.replace("CREATE TABLE other", "DO SLEEP(1.01); CREATE TABLE other")
            ),
            lambda: shop.sql(f"DO SLEEP(1.01); {act}"),
            says,
        )
    finally:
        shop.sql("DROP USER etl@'127.0.0.1'")


def test_what_keeps_the_rows_does_not_end_the_read(shop: Shop) -> None:
    check_no_change(
        lambda: shop.reader("t", statementSeconds="5"),
        lambda: shop.sql(_MADE),
        lambda: shop.sql("ANALYZE TABLE t; UPDATE t SET v = 'old'; FLUSH TABLES t"),
    )


def test_splits_of_one_job_read_one_table(shop: Shop) -> None:
    shop.sql(_MADE)
    reader = shop.reader("t")
    reader.schema()
    splits = reader.split(3)
    with reader.reading() as read:
        assert list(read(splits[0]))
        shop.sql(CHANGES["swap"][0])
        with pytest.raises(SourceError, match="not the table any more"):
            list(read(splits[1]))


def test_the_check_is_one_look_for_each_split(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is behind the last statement, however many a split has."""
    shop.sql(_MADE)
    asked: list[str] = []
    rows = MysqlSession.rows

    def noting(self: MysqlSession, sql: str, parameters: Sequence[object] = ()) -> Any:
        asked.append(sql)
        return rows(self, sql, parameters)

    reader = limited(shop.reader("t", statementSeconds="5"))
    reader.schema()
    splits = reader.split(2)
    monkeypatch.setattr(MysqlSession, "rows", noting)
    with acting(-1, lambda: None) as sent, reader.reading() as read:
        assert sum(batch.num_rows for split in splits for batch in read(split)) == 40
    assert len(sent) > 2 * len(splits)
    assert sum("create_time" in sql for sql in asked) == len(splits)


def _states(shop: Shop, name: str, form: str, acts: Sequence[str]) -> list[str]:
    """The table's number before and behind each of `acts`, without the time that a state has beside it."""
    quoted = name.replace("`", "``")
    words = {"t": f"`{quoted}`", "other": f"`other {quoted}`", "form": form}
    shop.sql(_TWINS.format(**words))
    states = [shop.state(name)]
    for act in acts:
        shop.sql(act.format(**words))
        states.append(shop.state(name))
    numbers = [state.split(" ")[3] for state in states]
    assert "None" not in numbers
    return numbers


@pytest.fixture
def own(mariadb_server: MariadbServer) -> Iterator[Shop]:
    """A database of its own: names that a test leaves go with it."""
    with own_shop(mariadb_server) as shop:
        yield shop


@pytest.mark.parametrize("change", OTHER_TABLE)
def test_the_number_tells_another_table_in_the_same_second(own: Shop, change: str) -> None:
    form, act = OTHER_TABLE[change]
    before, behind = _states(own, "t", form, [act])
    assert before != behind


@pytest.mark.parametrize("form", [_PLAIN, _PARTED], ids=["plain", "parted"])
def test_a_table_of_any_name_has_a_number_of_its_own(own: Shop, form: str) -> None:
    """Not that of a neighbour, whose name has other cases or looks as a partition's."""
    for name in _NAMES:
        before, behind = _states(own, name, form, ["RENAME TABLE {t} TO old, {other} TO {t}"])
        assert before != behind, name
        own.sql("DROP TABLE old")


@pytest.mark.parametrize("form", [_PLAIN, _PARTED], ids=["plain", "parted"])
def test_the_number_stays_where_rows_change_alone(own: Shop, form: str) -> None:
    neighbours = [f"CREATE TABLE `{name}` (id INT)" for name in ("t#p#x", "T", "t1")]
    more = ["DROP TABLE `t#p#x`", *SAME_TABLE]
    assert len(set(_states(own, "t", form, [*neighbours, *more]))) == 1


@pytest.mark.not_on("mariadb", "newest mariadb", reason="they have no such tablespaces")
@pytest.mark.parametrize("space", ["innodb_system", "`a b`"])
def test_a_table_that_shares_a_file_has_a_number(own: Shop, space: str) -> None:
    own.sql("CREATE TABLESPACE `a b` ADD DATAFILE 'shared.ibd'")
    try:
        acts = ["TRUNCATE {other}", "RENAME TABLE {t} TO old, {other} TO {t}"]
        before, same, behind = _states(own, "t", f"TABLESPACE {space}", acts)
        assert before == same != behind
    finally:
        own.sql("DROP TABLE IF EXISTS t, other, old, `other t`; DROP TABLESPACE `a b`")


def test_a_server_that_starts_again_has_the_same_table(server_class: type[MariadbServer]) -> None:
    server = server_class.create()
    try:
        shop = Shop(server, "shop")
        shop.sql(_MADE)
        states = []
        for crash in (False, True, None):
            states.append(shop.state())
            if crash is not None:
                shop.sql("TRUNCATE other; CREATE TABLE more LIKE other; DROP TABLE more")
                server.stop(crash=crash)
                server.start()
        assert len(set(states)) == 1
        assert not states[0].endswith("None")
    finally:
        server.close()
