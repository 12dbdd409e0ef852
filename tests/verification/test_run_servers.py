"""Verification of real servers: types of two systems, key ranges, snapshots, a limit, and repair."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

import spark_channel
from spark_channel.verification import in_database, run
from tests.connectors.mysql.shop import Shop
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

TABLE = """CREATE TABLE {} (id bigint PRIMARY KEY, name text, total numeric(12, 4), share float8, at timestamptz,
 local timestamp, day date, ok boolean, raw bytea, doc jsonb)"""
FILL = """INSERT INTO {} SELECT n * 7, 'Ü ' || n, n / 8.0, n / 3.0,
 timestamptz '2026-01-31 00:00Z' + n * interval '1 s',
 timestamp '2026-01-31' - n * interval '1 h', date '2026-01-31' + n, n % 2 = 0, decode(md5(n::text), 'hex'),
 jsonb_build_object('n', n, 'b', '[1.50, null]'::jsonb) FROM generate_series(-20, 4979) n"""
DIFFER = """UPDATE {0} SET total = total + 0.0001 WHERE id = 70; UPDATE {0} SET at = at + interval '1 us' WHERE id = 77;
 DELETE FROM {0} WHERE id = 84; INSERT INTO {0} (id, name) VALUES (85, 'new');"""


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[Pg]:
    with own_schema(postgres_server) as made:
        yield made


@pytest.fixture
def shop(mariadb_server: MariadbServer) -> Iterator[Shop]:
    mariadb_server.sql("CREATE DATABASE verified CHARACTER SET utf8mb4")
    yield Shop(mariadb_server, "verified")
    mariadb_server.sql("DROP DATABASE verified")


def filled(pg: Pg) -> None:
    for name in ("a", "b"):
        pg.psql(TABLE.format(name))
        pg.psql(FILL.format(name))
    pg.psql(DIFFER.format("b"))


FOUND = {70: "different", 77: "different", 84: "missing", 85: "extra"}


def test_postgresql_by_key_ranges_under_a_limit_and_by_snapshots(pg: Pg) -> None:
    filled(pg)
    one, other = pg.options(dbtable="a"), pg.options(dbtable="b")
    limited = spark_channel.verify(None, one, other, confirm=0, rows_per_second="200k")
    assert {each.key["id"]: each.kind for each in limited.differences} == FOUND
    assert limited.columns == {"total": 1, "at": 1}
    assert limited.compared["doc"] == "json"
    assert limited.method.endswith("computed in the databases")
    assert (limited.source_rows, limited.equal) == (5_000, 4_997)
    rows = spark_channel.verify(None, one, {**other, "customSchema": "name STRING"}, confirm=0)
    assert not rows.method.endswith("databases")
    assert rows.equal == 4_997
    held = spark_channel.verify(
        None, {**one, "snapshot": "true"}, {**other, "snapshot": "true"}, repair=True, delete=True
    )
    assert held.positions == {"source": "one snapshot", "target": "one snapshot"}
    assert (held.looks, held.outcome) == (2, "equal")
    assert spark_channel.verify(None, one, other).outcome == "equal"


def test_an_empty_table_lacks_all_rows_and_is_repaired(pg: Pg) -> None:
    for name in ("a", "b"):
        pg.psql(f"CREATE TABLE {name} (id int PRIMARY KEY, n int)")
    pg.psql("INSERT INTO a SELECT n, n FROM generate_series(1, 20) n")
    one, other = pg.options(dbtable="a"), pg.options(dbtable="b")
    assert spark_channel.verify(None, other, one, confirm=0).extra == 20
    report = spark_channel.verify(None, one, other, confirm=0, repair=True)
    assert (report.missing, report.outcome) == (20, "equal")


def test_postgresql_and_mariadb_hold_equal_values(pg: Pg, shop: Shop) -> None:
    filled(pg)
    target = {**shop.login, "dbtable": "b"}
    spark_channel.transfer(
        None, pg.options(dbtable="a"), {**target, "createTableColumnTypes": "id BIGINT"}
    )
    shop.sql("ALTER TABLE b ADD PRIMARY KEY (id)")
    report = spark_channel.verify(None, pg.options(dbtable="a"), target)
    assert report.outcome == "equal", report
    shop.sql("UPDATE b SET total = total + 0.0001 WHERE id = 70")
    shop.sql("UPDATE b SET `at` = `at` + INTERVAL 1 MICROSECOND WHERE id = 77")
    shop.sql("DELETE FROM b WHERE id = 84")
    shop.sql("INSERT INTO b (id, name) VALUES (85, 'new')")
    found = spark_channel.verify(
        None, pg.options(dbtable="a"), target, confirm=0, repair=True, delete=True
    )
    assert {each.key["id"]: each.kind for each in found.differences} == FOUND
    assert found.outcome == "equal"


MARIADB = """CREATE TABLE {} (id BIGINT PRIMARY KEY, name VARCHAR(40), bytes VARBINARY(20), total DECIMAL(12, 4),
 x DOUBLE, y FLOAT, at TIMESTAMP(6) NULL, local DATETIME(3), day DATE, kind ENUM('a', 'b'), bits BIT(9), doc JSON,
 words LONGTEXT, latin CHAR(10) CHARACTER SET latin1)"""
CHANGES = {
    "name": "CONCAT(name, ' ')", "bytes": "X'00FF01'", "total": "total + 0.0001", "x": "x + 1e-12", "y": "y + 1e-6",
    "at": "at + INTERVAL 1 MICROSECOND", "local": "local + INTERVAL 1000 MICROSECOND", "day": "day + INTERVAL 1 DAY",
    "kind": "'b'", "bits": "b'100000000'", "doc": "'[1]'", "words": "NULL", "latin": "'Ü'",
}  # fmt: skip


def no_row_is_read(*_: object) -> None:
    raise AssertionError("rows are read, though the databases have computed equal checksums")


def test_mariadb_computes_the_checksums_of_two_of_its_tables(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = """SELECT CAST(seq AS SIGNED) - 100, 'it''s, \\\\ Ü', X'00FF00', seq / 8, seq / 3, seq / 8,
     '2026-01-31 00:00:00.123456', '2026-01-31 00:00:00.123', '2026-01-31', 'a', b'1', '[2]', '', 'U'
     FROM seq_1_to_900"""
    for name in ("a", "b"):
        shop.sql(MARIADB.format(name))
        shop.sql(f"INSERT INTO {name} {values}")
        shop.sql(
            f"INSERT INTO {name} SELECT seq * {1 << 52} + {1 << 62} + 1, {', '.join(['NULL'] * 13)} FROM seq_0_to_99"
        )
    sides = [{**shop.login, "dbtable": name} for name in ("a", "b")]
    with monkeypatch.context() as patched:
        patched.setattr(run.Verification, "_entries", no_row_is_read)
        report = spark_channel.verify(None, *sides)
    assert (report.outcome, report.equal) == ("equal", 1_000), report
    assert report.method.endswith("computed in the databases")
    for number, (column, value) in enumerate(CHANGES.items()):
        shop.sql(f"UPDATE b SET `{column}` = {value} WHERE id = {number * 10}")
    shop.sql(f"UPDATE b SET name = '' WHERE id = {(7 << 52) + (1 << 62) + 1}")
    report = spark_channel.verify(None, *sides, confirm=0)
    assert report.columns == {**dict.fromkeys(CHANGES, 1), "name": 2}
    assert report.different == len(CHANGES) + 1


def whole_runs(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Sum runs of few rows; returns how each pass of the databases sums: by bucket, or runs as wholes."""
    passes: list[bool] = []
    summed = in_database.DatabaseSums._sql

    def seen(self: in_database.DatabaseSums, *args: Any) -> str:
        if passes[-1:] != [self.by_bucket]:
            passes.append(self.by_bucket)
        return summed(self, *args)

    monkeypatch.setattr(in_database, "_ROWS_OF_A_RUN", 130)
    monkeypatch.setattr(in_database.DatabaseSums, "_sql", seen)
    return passes


def differing(sides: Sequence[dict[str, Any]]) -> set[int]:
    report = spark_channel.verify(None, *sides, confirm=0)
    assert report.method.endswith("computed in the databases")
    assert report.source_rows == report.target_rows == 3_000
    assert report.equal == 3_000 - report.different
    return {each.key["id"] for each in report.differences}


def test_few_rows_that_differ_are_found_in_runs_that_are_summed_as_wholes(
    pg: Pg, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = whole_runs(monkeypatch)
    pg.psql("CREATE TABLE a AS SELECT n * 5 AS id, n AS n FROM generate_series(1, 3000) n")
    pg.psql("ALTER TABLE a ADD PRIMARY KEY (id); ANALYZE a; CREATE TABLE b (LIKE a INCLUDING ALL)")
    pg.psql("INSERT INTO b SELECT * FROM a")
    shop.sql("CREATE TABLE a (id INT PRIMARY KEY, n INT)")
    shop.sql("INSERT INTO a SELECT seq * 5, seq FROM seq_1_to_3000")
    shop.sql("CREATE TABLE b AS SELECT * FROM a")
    shop.sql("ALTER TABLE b ADD PRIMARY KEY (id)")
    engines: list[tuple[Callable[[str], str], list[dict[str, Any]]]] = [
        (pg.psql, [pg.options(dbtable=name) for name in "ab"]),
        (shop.sql, [{**shop.login, "dbtable": name} for name in "ab"]),
    ]
    random = Random(7)
    for statement, sides in engines:
        passes.clear()
        assert differing(sides) == set()
        assert passes == [True, False]  # no run is summed again
        for many in (1, 1, 2, 300):
            changed = {5 * each for each in random.sample(range(1, 3_001), many)}
            listed = ", ".join(map(str, changed))
            statement(f"UPDATE b SET n = -n WHERE id IN ({listed})")
            assert differing(sides) == changed
            statement(f"UPDATE b SET n = -n WHERE id IN ({listed})")


def listings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """List the hashes of few rows, too; returns how many rows of both sides each read returned."""
    read: list[int] = []
    found = run.Verification._found

    def seen(self: run.Verification, *args: Any) -> Any:
        made = found(self, *args)
        read.append(sum(len(side.keys) for side in made[1]))
        return made

    monkeypatch.setattr(run, "_LISTED_ROWS", 0)
    monkeypatch.setattr(run.Verification, "_found", seen)
    return read


def test_rows_are_read_where_the_hashes_differ_that_the_databases_list(
    pg: Pg, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = listings(monkeypatch)
    engines: list[tuple[Callable[[str], str], dict[str, Any], int]] = [
        (pg.psql, pg.options(), 39),
        (shop.sql, shop.login, 27),  # an update of 0 to -0 changes nothing in MariaDB
    ]
    for run_sql, login, looked_at in engines:
        run_sql("CREATE TABLE a (id INT PRIMARY KEY, part INT, x DOUBLE PRECISION, v VARCHAR(9))")
        values = [f"({n}, {n // 3}, {n % 5 and n / 7}, 'v{n % 4}')" for n in range(600)]
        run_sql(f"INSERT INTO a VALUES {', '.join(values)}")
        run_sql("CREATE INDEX parts ON a (part)")
        run_sql("CREATE TABLE b AS SELECT * FROM a")
        run_sql("ALTER TABLE b ADD PRIMARY KEY (id)")
        run_sql("CREATE INDEX b_parts ON b (part)")
        run_sql("UPDATE b SET x = '-0' WHERE id % 100 = 0")  # equal, and other texts
        run_sql("UPDATE b SET v = 'V1' WHERE id % 50 = 1")
        run_sql("DELETE FROM b WHERE id = 20")
        run_sql("UPDATE b SET id = 1000 WHERE id = 30")
        sides = [{**login, "dbtable": name} for name in "ab"]
        read.clear()
        report = spark_channel.verify(None, *sides, confirm=0)
        assert report.method.endswith("computed in the databases")
        assert (report.different, report.missing, report.extra) == (12, 2, 1), report
        assert (report.equal, report.settled, report.columns) == (586, 0, {"v": 12})
        assert read == [1199, looked_at]  # all rows' hashes, and then the rows of a few keys
        # A key that three rows have: a row with another key than that of the source is an extra one.
        report = spark_channel.verify(None, *sides, key=["part"], confirm=0)
        assert (report.equal, report.different + report.missing) == (586, 14), report
    read.clear()
    shop.sql("UPDATE b SET v = '' WHERE id % 5 = 0")
    report = spark_channel.verify(None, *sides, confirm=0)
    assert report.different == 130, report
    assert read == [1199, 1199]  # so many differ that all rows are read


def test_rounds_without_a_difference_read_no_row_again(
    pg: Pg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is behind: the last third of the rows differs, so that the databases list the others, too."""
    read = listings(monkeypatch)
    whole_runs(monkeypatch)
    passes: list[int] = []
    passed = run.Verification._pass

    def seen(self: run.Verification, *args: Any) -> Any:
        made = passed(self, *args)
        passes.append(sum(rows for _, rows, _ in made))
        return made

    monkeypatch.setattr(run.Verification, "_pass", seen)
    monkeypatch.setattr(run, "_MOST_ROWS", 1_000)
    pg.psql(
        "CREATE TABLE a AS SELECT n AS id, n % 9 AS part, n AS v FROM generate_series(1, 3000) n"
    )
    pg.psql("UPDATE a SET part = NULL WHERE id = 1500; CREATE UNIQUE INDEX ON a (id)")
    pg.psql("ANALYZE a; CREATE TABLE b (LIKE a INCLUDING ALL)")
    pg.psql("INSERT INTO b SELECT id, part, v + (id IN (700, 1500) OR id > 2000)::int FROM a")
    sides = [pg.options(dbtable=name) for name in "ab"]
    report = spark_channel.verify(None, *sides, key=["id", "part"], confirm=0)
    assert (report.different, report.equal) == (1_002, 1_998), report
    assert read.count(0) == 0
    assert sum(passes) < 24_000  # a round that reads all ranges again adds 5 000


def test_a_value_that_mariadb_cannot_hash_is_read(shop: Shop) -> None:
    for name in ("a", "b"):
        shop.sql(f"CREATE TABLE {name} (id INT PRIMARY KEY, words LONGTEXT)")
        shop.sql(f"INSERT INTO {name} VALUES (1, REPEAT('\\'', 9000000)), (2, NULL)")
    sides = [{**shop.login, "dbtable": name} for name in ("a", "b")]
    report = spark_channel.verify(None, *sides, confirm=0)
    assert (report.outcome, report.equal) == ("equal", 2)
    shop.sql("UPDATE b SET words = CONCAT('x', SUBSTR(words, 2)) WHERE id = 1")
    report = spark_channel.verify(None, *sides, confirm=0)
    assert (report.outcome, report.columns) == ("different", {"words": 1})


def test_text_keys_are_found_whatever_the_collations(pg: Pg, shop: Shop) -> None:
    pg.psql("CREATE TABLE a (code text PRIMARY KEY, n int)")
    pg.psql(
        "INSERT INTO a SELECT chr(65 + i % 26) || chr(97 + i / 26) || i, i FROM generate_series(0, 599) i"
    )
    pg.psql("INSERT INTO a VALUES ('it''s \\ %', 1), ('ä', 2)")
    target = {**shop.login, "dbtable": "b"}
    shop.sql(
        "CREATE TABLE b (code VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY, n INT)"
    )
    spark_channel.transfer(None, pg.options(dbtable="a"), target)
    shop.sql("UPDATE b SET n = -n WHERE n IN (2, 44) AND code <> 'Cac2'")
    report = spark_channel.verify(None, pg.options(dbtable="a"), target, confirm=0, repair=True)
    assert (report.different, report.outcome) == (report.repaired["upserted"], "equal")
    assert report.different >= 2


def test_equal_values_of_other_texts_are_no_differences(pg: Pg) -> None:
    pg.psql("CREATE TABLE a (id int PRIMARY KEY, n numeric, x float8, doc json)")
    pg.psql("CREATE TABLE b (LIKE a INCLUDING ALL)")
    pg.psql("INSERT INTO a VALUES (1, 1.50, 0.0, '{\"a\": 1, \"b\": 2}'), (2, NULL, 'NaN', NULL)")
    pg.psql("INSERT INTO b VALUES (1, 1.5, '-0.0', '{\"b\":2,\"a\":1.0}'), (2, NULL, 'NaN', NULL)")
    sides = [pg.options(dbtable=name, columns="id,x,doc") for name in "ab"]
    report = spark_channel.verify(None, *sides, confirm=0)
    assert (report.outcome, report.equal) == ("equal", 2)
    assert report.method.endswith("computed in the databases")
    pg.psql("UPDATE b SET x = 1e-300 WHERE id = 1; UPDATE b SET doc = 'null' WHERE id = 2")
    report = spark_channel.verify(None, *sides, confirm=0)
    assert report.columns == {"x": 1, "doc": 1}


def test_keys_that_the_other_database_cannot_hold_are_missing_there(pg: Pg, shop: Shop) -> None:
    source = {**shop.login, "dbtable": "a"}
    shop.sql("CREATE TABLE a (id VARCHAR(9) COLLATE utf8mb4_bin PRIMARY KEY, n INT)")
    shop.sql("INSERT INTO a VALUES ('a', 1), ('ž', 2), (CONCAT('a', CHAR(0)), 3), ('Ü', 4)")
    pg.psql("CREATE TABLE b (id text PRIMARY KEY, n int)")
    pg.psql("INSERT INTO b VALUES ('a', 1), ('ž', 2), ('Ü', 5)")
    shop.sql("CREATE TABLE b (id VARCHAR(9) CHARACTER SET latin1 PRIMARY KEY, n INT)")
    shop.sql("INSERT INTO b VALUES ('a', 1), (CONCAT('a', CHAR(0)), 3), ('Ü', 5)")
    for target, lacks in ((pg.options(dbtable="b"), "a\0"), ({**shop.login, "dbtable": "b"}, "ž")):
        report = spark_channel.verify(None, source, target, confirm=0)
        found = {each.key["id"]: each.kind for each in report.differences}
        assert found == {lacks: "missing", "Ü": "different"}
        assert report.equal == 2


def test_a_repair_spares_rows_that_mariadb_finds_by_another_key(pg: Pg, shop: Shop) -> None:
    pg.psql("CREATE TABLE a (id text PRIMARY KEY, n int)")
    pg.psql("INSERT INTO a VALUES ('ä', 1), ('a ', 2)")
    shop.sql("CREATE TABLE b (id VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT)")
    shop.sql("INSERT INTO b VALUES ('ä', 1)")
    target = {**shop.login, "dbtable": "b"}
    report = spark_channel.verify(None, pg.options(dbtable="a"), target, confirm=0, repair=True)
    assert (report.outcome, report.missing, report.repaired) == ("different", 1, {})
    assert "the target finds 1 other rows by the keys to write" in report.notes[-1]
    assert shop.sql("SELECT n FROM b").split() == ["1"]
