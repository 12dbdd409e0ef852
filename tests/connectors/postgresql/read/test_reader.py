"""Splits cover a source once, in ranges of about equal rows, whatever the key and however it is spread."""

from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pytest

from spark_channel.connectors import FetchSize
from spark_channel.connectors.postgresql.catalog import PgTable
from spark_channel.connectors.postgresql.read.reader import PostgresSplitter
from spark_channel.connectors.postgresql.session import PgSession
from spark_channel.connectors.sql.read.quantiles import divisions
from spark_channel.errors import OptionError
from tests.connectors.postgresql.pg import Pg
from tests.connectors.sql.skewed import rows, uneven


def _sizes(pg: Pg, dbtable: str | None = "t", advice: int = 8, **options: object) -> list[int]:
    reader = pg.reader(dbtable, **options)
    reader.schema()
    return [sum(batch.num_rows for batch in reader.read(split)) for split in reader.split(advice)]


def _even(sizes: list[int]) -> bool:
    return max(sizes) <= 1.3 * min(sizes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that sessions of this process run."""
    statements: list[str] = []
    real = PgSession.rows

    def rows(self: PgSession, sql: str) -> list[tuple[Any, ...]]:
        statements.append(sql)
        return real(self, sql)

    monkeypatch.setattr(PgSession, "rows", rows)
    return statements


_SKEWED = (
    "CREATE TABLE t (id bigint PRIMARY KEY, v text);"
    "INSERT INTO t SELECT g, 'x' FROM generate_series(1, 99000) g;"
    "INSERT INTO t SELECT 99000 + g * 9801, 'y' FROM generate_series(1, 1000) g;"
)


def test_any_source_with_skewed_keys_makes_even_splits(pg: Pg) -> None:
    values = ", ".join(f"({number}, '{name}', '{a}', {b})" for number, name, a, b in rows())
    pg.psql(
        'CREATE TABLE r (id int, name text COLLATE "en-x-icu", a text COLLATE "C", b int);'
        f"INSERT INTO r VALUES {values}; CREATE TABLE ints AS SELECT id FROM r; CREATE TABLE texts AS SELECT * FROM r;"
        "CREATE TABLE pairs AS SELECT a, b, id FROM r; CREATE VIEW v AS SELECT * FROM texts;"
        "ALTER TABLE ints ADD PRIMARY KEY (id); ALTER TABLE texts ADD PRIMARY KEY (name);"
        "ALTER TABLE pairs ADD PRIMARY KEY (a, b)"
    )
    assert uneven(pg.reader) == {}


@pytest.mark.parametrize("analyzed", [True, False])
def test_a_large_table_is_split_by_statistics_or_a_sample(
    pg: Pg, analyzed: bool, asked: list[str]
) -> None:
    """About 5 000 pages in no order: more than are looked at whole."""
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, pad text) WITH (autovacuum_enabled = off);"
        "INSERT INTO t SELECT CASE WHEN g % 100 = 0 THEN g * 9801 ELSE g END, repeat('x', 380) "
        "FROM generate_series(1, 85000) g ORDER BY hashint4(g);"
        "SELECT pg_stat_force_next_flush()"  # else the server may count these rows as changed after ANALYZE
    )
    if analyzed:
        pg.psql("ANALYZE t")
    assert int(pg.psql("SELECT pg_relation_size('t') / 8192")) > 4096
    sizes = _sizes(pg, advice=4, columns="id")
    assert sum(sizes) == 85_000
    assert len(sizes) >= 4
    assert _even(sizes)
    looked = [sql for sql in asked if "PERCENTILE_DISC" in sql.upper()]
    assert [("TABLESAMPLE" in sql) for sql in looked] == ([] if analyzed else [True]), looked


def test_the_many_splits_of_a_limited_job_are_planned_from_as_many_rows_as_few(
    pg: Pg, asked: list[str]
) -> None:
    """Their number is in no statement that each row is compared by, and the sample ends at 400 MiB."""
    pg.psql(
        "CREATE TABLE t (a int, b int, PRIMARY KEY (a, b));"
        "INSERT INTO t SELECT g / 100, g % 100 FROM generate_series(1, 3000) g"
    )
    reader = pg.reader()
    reader.schema()
    splits = reader.split(1000)
    assert len(splits) == 1000
    assert sum(split.rows or 0 for split in splits) == 3000
    assert max(len(sql) for sql in asked if "FROM pg_catalog.pg_class c" not in sql) < 2_000
    with reader.connect("plan") as session:
        source = reader.known(session)
        table = replace(cast(PgTable, source.table), pages=10_000_000)
        splitter = PostgresSplitter(session, replace(source, table=table), reader.options, 2000)
        sampled, share = splitter._sampled()
    assert share == 0.005
    assert "TABLESAMPLE SYSTEM (0.5" in sampled.origin


def test_a_limited_job_looks_at_few_pages_where_they_say_enough(pg: Pg, asked: list[str]) -> None:
    """1 100 pages, which are looked at whole without a limit."""
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, pad text) WITH (autovacuum_enabled = off);"
        "INSERT INTO t SELECT g, repeat('x', 380) FROM generate_series(1, 20000) g ORDER BY hashint4(g)"
    )
    pages = int(pg.psql("SELECT pg_relation_size('t') / 8192"))
    assert 1_000 < pages < 4_096

    def planned(where: str | None = None) -> tuple[list[int], list[bool]]:
        asked.clear()
        reader = pg.reader("t", **({} if where is None else {"where": where}))
        reader.fetch_size = FetchSize(rows=5_000)
        schema = reader.schema()
        splits = reader.split(8)
        ids = [
            row
            for split in splits
            for batch in reader.read(split)
            for row in batch.column(0).to_pylist()
        ]
        assert schema.names == ["id", "pad"]
        assert len(ids) == len(set(ids))
        assert len(ids) == int(pg.psql(f"SELECT count(*) FROM t WHERE {where or 'true'}"))
        looked = ["TABLESAMPLE" in sql for sql in asked if "PERCENTILE_DISC" in sql.upper()]
        return [split.rows or 0 for split in splits], looked

    sizes, looked = planned()
    assert looked == [True]
    assert len(sizes) == 8
    assert sum(sizes) == pytest.approx(20_000, rel=0.5)
    sizes, looked = planned("id % 100 = 0")  # of which 200 pages do not hold enough
    assert looked == [True, False]
    assert sum(sizes) == 200


def test_stale_statistics_are_not_trusted(pg: Pg, asked: list[str]) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, pad text) WITH (autovacuum_enabled = off);"
        "INSERT INTO t SELECT g, repeat('x', 380) FROM generate_series(1, 85000) g; ANALYZE t;"
        "INSERT INTO t SELECT 1000000 + g, repeat('x', 380) FROM generate_series(1, 60000) g;"
        "SELECT pg_stat_force_next_flush()"
    )
    sizes = _sizes(pg, advice=4, columns="id")
    assert sum(sizes) == 145_000
    assert _even(sizes)
    assert any("TABLESAMPLE" in sql for sql in asked)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("text", "'k-' || md5(g::text)"),
        ("uuid", "md5(g::text)::uuid"),
        ("numeric(20, 4)", "g * 0.37"),
        ("float8", "CASE WHEN g = 7 THEN 'NaN'::float8 ELSE ln(g) END"),
        ("timestamptz", "now() + g * interval '1 second'"),
        ("date", "date '1900-01-01' + g"),
        ("char(40)", "md5(g::text)"),
        ("bytea", "decode(md5(g::text), 'hex')"),
    ],
)
def test_keys_of_any_type(pg: Pg, key: str, value: str) -> None:
    pg.psql(
        f"CREATE TABLE t (k {key} PRIMARY KEY, n int);"
        f"INSERT INTO t SELECT {value}, g FROM generate_series(1, 5000) g"
    )
    sizes = _sizes(pg)
    assert len(sizes) == 8
    assert sum(sizes) == 5000
    assert _even(sizes)


def test_null_keys_have_a_split_of_their_own(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (k int, v text);"
        "INSERT INTO t SELECT nullif(g % 1000, 0), 'v' FROM generate_series(1, 10000) g"
    )
    reader = pg.reader("t", partitionColumn="k")
    reader.schema()
    splits = reader.split(4)
    nulls = [split for split in splits if split.params["kind"] == "null"]
    assert len(nulls) == 1
    assert sum(batch.num_rows for batch in reader.read(nulls[0])) == 10
    assert sum(_sizes(pg, partitionColumn="k", advice=4)) == 10_000
    pg.psql("CREATE INDEX ON t (k)")
    assert sum(_sizes(pg, advice=4)) == 10_000  # the index alone makes it a key


def test_views_and_queries_are_one_split_until_a_key_is_named(pg: Pg) -> None:
    pg.psql(_SKEWED + "CREATE VIEW v AS SELECT id + 1 AS id2, v FROM t")
    assert _sizes(pg, "v") == [100_000]
    assert _even(_sizes(pg, "v", partitionColumn="id2"))
    query = "SELECT id, id % 7 AS seven FROM t WHERE id <= 70000"
    assert _sizes(pg, None, query=query) == [70_000]
    sizes = _sizes(pg, None, query=query, partitionColumn="id")
    assert len(sizes) == 8
    assert sum(sizes) == 70_000
    assert _even(sizes)


def test_where_is_counted_in(pg: Pg) -> None:
    pg.psql(_SKEWED)
    sizes = _sizes(pg, where="id > 98000 AND v = 'y'")
    assert sum(sizes) == 1000
    assert _even(sizes)


def test_partitioned_and_empty_tables(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (100000)"
    )
    assert _sizes(pg) == []
    assert _sizes(pg, partitionColumn="id") == []
    pg.psql("INSERT INTO t SELECT generate_series(1, 9999)")
    sizes = _sizes(pg)
    assert sum(sizes) == 9999
    assert _even(sizes)


def test_a_snapshot_ties_all_splits_together(pg: Pg) -> None:
    """Rows that move between two ranges of pages while they are read: 100 000 stay 100 000."""
    pg.psql("CREATE TABLE t AS SELECT g AS id, 0 AS n FROM generate_series(1, 100000) g")
    reader = pg.reader("t", snapshot="true")
    reader.schema()
    ids: list[int] = []
    with reader.hold():
        splits = reader.split(8)
        assert {tuple(split.params["key"]) for split in splits} == {("ctid",)}
        assert len({split.params["snapshot"] for split in splits}) == 1
        assert len(splits) == 8
        for split in splits:
            ids += pa.Table.from_batches(reader.read(split), reader.schema())["id"].to_pylist()
            pg.psql("UPDATE t SET n = n + 1 WHERE id % 100 = 0; DELETE FROM t WHERE id = 99999")
    assert sorted(ids) == list(range(1, 100_001))
    assert pg.server.connections() == 0


def test_a_snapshot_without_a_holder_is_refused(pg: Pg) -> None:
    pg.psql("CREATE TABLE t AS SELECT 1 AS id")
    reader = pg.reader("t", snapshot="true")
    reader.schema()
    with pytest.raises(OptionError, match="only a transfer"):
        reader.split(4)


def test_the_ranges_leave_no_gap(pg: Pg) -> None:
    pg.psql(_SKEWED)
    reader = pg.reader("t")
    reader.schema()
    splits = reader.split(5)
    assert splits[0].params["lower"] is None
    assert splits[-1].params["upper"] is None
    assert all(one.params["upper"] == two.params["lower"] for one, two in pairwise(splits))
    assert sum(split.rows or 0 for split in splits) == 100_000


UNDIVIDED = {
    "int[]": "ARRAY[i]",
    "text[]": "ARRAY[i::text]",
    "pair": "ROW(i, 'x')::pair",
    "pair[]": "ARRAY[ROW(i, 'x')::pair]",
    "ints": "ARRAY[i]",
}


@pytest.mark.parametrize("index", ["PRIMARY KEY", ""])
@pytest.mark.parametrize("declared", UNDIVIDED)
def test_a_key_without_quantiles_is_one_split(pg: Pg, declared: str, index: str) -> None:
    pg.psql(
        "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN ints AS int[];"
        f"CREATE TABLE t (k {declared} {index}, v int); CREATE INDEX ON t (k);"
        f"INSERT INTO t SELECT {UNDIVIDED[declared]}, i FROM generate_series(1, 60) i"
    )
    reader = pg.reader("t")
    schema = reader.schema()
    (split,) = reader.split(4)
    rows = pa.Table.from_batches(list(reader.read(split)), schema)
    assert sorted(rows["v"].to_pylist()) == list(range(1, 61))
    with pytest.raises(OptionError, match=r"'partitionColumn' names 'k'.*no ranges"):
        pg.read("t", advice=4, partitionColumn="k")


def test_another_index_divides_a_table_whose_key_does_not(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (k int[] PRIMARY KEY, v int); CREATE INDEX ON t (v);"
        "INSERT INTO t SELECT ARRAY[i], i FROM generate_series(1, 60) i"
    )
    reader = pg.reader("t")
    reader.schema()
    assert len(reader.split(4)) > 1


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("EXISTS (SELECT FROM u WHERE u.i = t.id)", 5),
        ("EXISTS (SELECT FROM u WHERE u.i = {schema}.t.id)", 5),
        ("id IN (SELECT i FROM u WHERE i = t.id)", 5),
        ("NOT EXISTS (SELECT FROM t later WHERE later.id > t.id)", 1),
        ("T.id = 1", 1),
        ('"t"."id" = 1', 1),
        ("ID = 1 AND EXISTS (SELECT FROM u WHERE i = t.id)", 1),
        ("xmin::text <> '0'", 10),
        ("t.xmin IS NOT NULL AND age(xmin) < 2000000000", 10),
        ("ctid < '(0,4)' AND tableoid = 't'::regclass", 3),
        ("CTID = '(0,1)' AND cmin = '0' AND xmax = '0'", 1),
        ("t IS NOT NULL", 10),
        ("t.* IS NOT NULL", 10),
        ("to_jsonb(t) ->> 'id' = '5'", 1),
    ],
)
def test_a_condition_means_what_the_server_takes_it_for(pg: Pg, where: str, rows: int) -> None:
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t SELECT i, i FROM generate_series(1, 10) i;"
        "CREATE TABLE u (i int); INSERT INTO u SELECT generate_series(1, 5)"
    )
    where = where.format(schema=pg.schema)
    assert pg.psql(f"SELECT count(*) FROM t WHERE {where}") == str(rows)
    for advice in (1, 3):
        assert pg.read("t", advice=advice, where=where).num_rows == rows


def test_columns_of_the_system_in_a_query(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (id int); INSERT INTO t VALUES (1), (2)")
    shown = "SELECT xmin::text, ctid::text, tableoid::text, cmin::text FROM t"
    query = "SELECT xmin, ctid, tableoid, cmin FROM t"
    found = ["|".join(row.values()) for row in pg.read(None, query=query).to_pylist()]
    assert found == pg.psql(shown).split("\n")
    assert pg.read(None, query=query, where="ctid = '(0,2)'").num_rows == 1


def test_a_table_and_its_column_of_one_name(pg: Pg) -> None:
    pg.psql("CREATE TABLE t (t int PRIMARY KEY, source int); INSERT INTO t VALUES (1, 2), (2, 3)")
    assert pg.read("t", advice=2, where="t = 1 AND source = 2").to_pylist() == [
        {"t": 1, "source": 2}
    ]


_COMMON = "SELECT g AS id, CASE WHEN g % 10 = 0 THEN g END AS k, repeat('x', 50) AS v FROM generate_series(1, 6000) g"


def _held(pg: Pg, *, moves: bool) -> tuple[list[str], list[int], list[str]]:
    """By what NULLs are divided, the sizes, and the remarks; rows move while the splits are read."""
    reader = pg.reader("t", snapshot="true", partitionColumn="k", columns="id, k")
    reader.schema()
    ids: list[int] = []
    sizes = []
    with reader.hold():
        splits = reader.split(8)
        for split in splits:
            part = [value for batch in reader.read(split) for value in batch["id"].to_pylist()]
            ids += part
            sizes.append(len(part))
            if moves:
                pg.psql("UPDATE t SET v = v || 'y' WHERE id % 3 = 0")
    assert sorted(ids) == list(range(1, 6_001))
    keys = {key for split in splits for key in split.params.get("part", {"key": []})["key"]}
    return sorted(keys), sizes, reader.remarks(splits)


_PARTED = "CREATE TABLE t (id int, k int, v text) PARTITION BY RANGE (id);"


_HELD = {
    "table": f"CREATE TABLE t AS {_COMMON}",
    "key": f"CREATE TABLE t AS {_COMMON}; ALTER TABLE t ADD PRIMARY KEY (id)",
    "materialized view": f"CREATE MATERIALIZED VIEW t AS {_COMMON}",
    "partitioned": f"{_PARTED} CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (3000);"
    f"CREATE TABLE t2 PARTITION OF t DEFAULT; INSERT INTO t {_COMMON}",
    "partitioned with a key": f"{_PARTED} CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (3000);"
    f"CREATE TABLE t2 PARTITION OF t DEFAULT; INSERT INTO t {_COMMON}; ALTER TABLE t ADD PRIMARY KEY (id)",
    "inherited": "CREATE TABLE t (id int, k int, v text); CREATE TABLE child () INHERITS (t);"
    f"INSERT INTO t {_COMMON} LIMIT 3000; INSERT INTO child {_COMMON} OFFSET 3000",
    "foreign part": f"CREATE EXTENSION IF NOT EXISTS file_fdw; {_PARTED}"
    "CREATE SERVER {schema} FOREIGN DATA WRAPPER file_fdw;"
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (6000);"
    "CREATE FOREIGN TABLE t2 PARTITION OF t FOR VALUES FROM (6000) TO (6001) SERVER {schema}"
    f" OPTIONS (program 'echo 6000,6000,x', format 'csv'); INSERT INTO t {_COMMON} LIMIT 5999",
    "view": f"CREATE VIEW t AS SELECT *, id AS again FROM ({_COMMON}) q",
}


_DIVIDED_BY = {
    "table": ["ctid"],
    "key": ["id"],
    "materialized view": ["ctid"],
    "partitioned with a key": ["id"],
}


@pytest.mark.parametrize("kind", _HELD)
def test_a_held_snapshot_divides_a_value_by_the_key_or_pages(pg: Pg, kind: str) -> None:
    """Not by the pages of several tables, of which one may be written anew between two splits, as by VACUUM FULL."""
    pg.psql(_HELD[kind].replace("{schema}", pg.schema))
    divided_by = _DIVIDED_BY.get(kind, [])
    moves = kind not in ("materialized view", "foreign part", "view")
    keys, sizes, remarks = _held(pg, moves=moves)
    assert keys == divided_by
    assert (max(sizes) <= 1.5 * 750) == bool(divided_by), sizes
    assert len(remarks) == (0 if divided_by else 1)


_MOVED = f"{_PARTED} CREATE TABLE t1 PARTITION OF t DEFAULT; INSERT INTO t {_COMMON};"
_TREES = {
    "partitioned": _MOVED,
    "partitioned with a key": f"{_MOVED} ALTER TABLE t ADD PRIMARY KEY (id);",
    "inherited": "CREATE TABLE t (id int, k int, v text); CREATE TABLE t1 () INHERITS (t);"
    f"INSERT INTO t1 {_COMMON};",
}


@pytest.mark.parametrize("column", ["k", None])
@pytest.mark.parametrize("kind", _TREES)
def test_a_part_that_vacuum_full_writes_anew_loses_no_row(
    pg: Pg, kind: str, column: str | None
) -> None:
    """Its rows move to other pages between two splits of one snapshot."""
    pg.psql(f"{_TREES[kind]} DELETE FROM t WHERE id % 2 = 0")
    options = {} if column is None else {"partitionColumn": column}
    reader = pg.reader("t", snapshot="true", columns="id, k", **options)
    reader.schema()
    ids: list[int] = []
    with reader.hold():
        splits = reader.split(8)
        by = {tuple(part["key"]) for split in splits if (part := split.params.get("part"))}
        assert by == ({("id",)} if column and "key" in kind else set())
        for split in splits:
            ids += [value for batch in reader.read(split) for value in batch["id"].to_pylist()]
            pg.psql("VACUUM FULL t1")
    assert sorted(ids) == list(range(1, 6_001, 2))


def test_what_the_login_may_not_read_divides_nothing(pg: Pg) -> None:
    role = f"{pg.schema}_clerk"
    pg.psql(
        "CREATE TABLE t (id int PRIMARY KEY, k int, v text) PARTITION BY RANGE (id);"
        f"CREATE TABLE t1 PARTITION OF t DEFAULT; INSERT INTO t {_COMMON};"
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA {pg.schema} TO {role};"
        f"GRANT SELECT (k, v) ON t TO {role}"
    )
    login = {"user": role, "password": "x"}
    reader = pg.reader("t", partitionColumn="k", columns="k, v", **login)
    reader.schema()
    splits = reader.split(8)
    assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 6_000
    assert "that this login may read" in reader.remarks(splits)[0]
    pg.psql(f"GRANT SELECT (id) ON t TO {role}")
    assert divisions(pg.reader("t", partitionColumn="k", columns="k, v", **login).split(8))
    pg.psql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_equal_numbers_of_other_forms_are_one_value(pg: Pg) -> None:
    """1.0 and 1.00 are; so are texts of a collation that ignores case."""
    pg.psql(
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, s text COLLATE nocase);"
        "INSERT INTO t SELECT g, CASE WHEN g % 10 = 0 THEN g WHEN g % 2 = 0 THEN 1.0 ELSE 1.00 END,"
        "CASE WHEN g % 10 = 0 THEN g::text WHEN g % 2 = 0 THEN 'open' ELSE 'Open' END FROM generate_series(1, 6000) g"
    )
    for column in ("n", "s"):
        sizes = _sizes(pg, partitionColumn=column, columns="id")
        assert sum(sizes) == 6_000
        assert max(sizes) <= 1.5 * 750, (column, sizes)


def test_nulls_of_a_large_table_are_divided_by_a_sample(pg: Pg, asked: list[str]) -> None:
    """More pages than are looked at whole: rows and NULLs are estimated, and no row is lost where none was seen."""
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, k int, pad text) WITH (autovacuum_enabled = off);"
        "INSERT INTO t SELECT g, CASE WHEN g % 2 = 0 THEN g END, repeat('x', 400) FROM generate_series(1, 82000) g"
    )
    sizes = _sizes(pg, advice=4, columns="id", partitionColumn="k")
    assert sum(sizes) == 82_000
    assert max(sizes) <= 1.5 * 82_000 / 4, sizes
    assert len([sql for sql in asked if "TABLESAMPLE" in sql]) == 2
    pg.psql("UPDATE t SET k = NULL WHERE id <> 41000")
    sizes = _sizes(pg, advice=4, columns="id", partitionColumn="k")
    assert sum(sizes) == 82_000
    assert max(sizes) <= 1.5 * 82_000 / 4, sizes
