"""Rights that the server does not ask for are not asked for before a row is read either."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

import spark_channel
from spark_channel.errors import SourceError, TargetError
from tests.connectors.postgresql.pg import Pg

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "v": ["a", "b"]})


@pytest.fixture
def role(pg: Pg) -> Iterator[str]:
    name = f"loader_{pg.schema}"
    pg.psql(
        f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT USAGE, CREATE ON SCHEMA {pg.schema} TO {name}"
    )
    yield name
    pg.psql(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


def test_an_upsert_of_nothing_but_keys_needs_no_update(pg: Pg, role: str) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint, v text, PRIMARY KEY (id, v)); INSERT INTO t VALUES (1, 'a');"
        f"GRANT SELECT, INSERT ON t TO {role}"
    )
    pg.write(ROWS, user=role, password="x", writeMode="upsert", keyColumns="id,v")
    assert pg.psql("SELECT count(*) FROM t") == "2"


def test_the_owner_of_a_schema_may_replace_a_table_of_another_role(pg: Pg, role: str) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint, v text); INSERT INTO t VALUES (9, 'old');"
        f"ALTER SCHEMA {pg.schema} OWNER TO {role}"
    )
    try:
        pg.write(ROWS, overwrite=True, user=role, password="x", truncate="false")
        assert pg.psql("SELECT min(id), count(*) FROM t") == "1|2"
    finally:
        pg.psql(f"ALTER SCHEMA {pg.schema} OWNER TO CURRENT_USER")


def test_a_copy_counts_on_where_the_login_may_not_read_the_sequence(pg: Pg, role: str) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text);"
        f"INSERT INTO t (v) VALUES ('a'), ('b'), ('c'); GRANT SELECT ON t TO {role}"
    )
    source = pg.options(dbtable="t", user=role, password="x")
    spark_channel.transfer(None, source, pg.options(dbtable="copied", createTable="full"))
    assert pg.psql("INSERT INTO copied (v) VALUES ('d') RETURNING id").splitlines()[0] == "4"


def test_a_missing_right_is_said_before_a_row_is_read(pg: Pg, role: str) -> None:
    pg.psql(f"CREATE TABLE t (id bigint, v text); GRANT SELECT ON t TO {role}")
    with pytest.raises(TargetError, match=rf"run GRANT INSERT ON {pg.schema}\.t TO {role}"):
        pg.writer(user=role, password="x").prepare(pg.context(), ROWS.schema)


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_read_names_the_grants_that_it_lacks(pg: Pg, role: str, has_usage: bool) -> None:
    pg.psql("CREATE TABLE t (id bigint PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    usage = rf"GRANT USAGE ON SCHEMA {pg.schema} TO {role}; "
    if not has_usage:
        pg.psql(f"REVOKE ALL ON SCHEMA {pg.schema} FROM {role}")
    lacks = rf"run {'' if has_usage else usage}GRANT SELECT ON {pg.schema}\.t TO {role}$"
    source = pg.options(dbtable=f"{pg.schema}.t", user=role, password="x")
    with pytest.raises(SourceError, match=lacks) as refused:
        spark_channel.transfer(None, source, pg.options(dbtable="copied"))
    assert refused.value.is_of_input
    reader = pg.reader(f"{pg.schema}.t")
    assert reader.schema().names == ["id", "v"]
    (split,) = reader.split(1)
    denied = pg.reader(f"{pg.schema}.t", user=role, password="x")
    with pytest.raises(SourceError, match=lacks), denied.reading() as read:
        list(read(split))


def test_a_right_on_some_columns_is_not_enough_for_the_others(pg: Pg, role: str) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a');"
        f"GRANT SELECT (id) ON t TO {role}"
    )
    source = pg.options(dbtable="t", user=role, password="x")
    with pytest.raises(SourceError, match=rf"run GRANT SELECT ON {pg.schema}\.t TO {role}$"):
        spark_channel.transfer(None, source, pg.options(dbtable="copied"))
