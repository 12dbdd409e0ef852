"""A login that row security applies to: a read names it, and the log, which knows no policy, is not followed."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from spark_channel.connectors import load_reader
from spark_channel.connectors.base.feed import FeedOptions
from spark_channel.connectors.postgresql import PostgresReader
from spark_channel.errors import SourceError
from tests.connectors.postgresql.pg import Pg


@pytest.fixture
def etl(pg: Pg) -> Iterator[dict[str, Any]]:
    role = f"etl_{pg.schema}"
    pg.psql(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'p';"
        "CREATE TABLE t (id int PRIMARY KEY, org int); INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 9) g;"
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON t USING (org = 1);"
        f"GRANT USAGE ON SCHEMA {pg.schema} TO {role}; GRANT SELECT ON t TO {role};"
        f"CREATE PUBLICATION p_{pg.schema} FOR TABLE t"
    )
    yield {**pg.options(dbtable="t"), "user": role, "password": "p"}
    pg.psql(f"DROP PUBLICATION p_{pg.schema}; DROP TABLE t; DROP OWNED BY {role}; DROP ROLE {role}")


def of(options: dict[str, Any]) -> PostgresReader:
    reader, _ = load_reader(options)
    assert isinstance(reader, PostgresReader)
    return reader


def test_a_filtered_read_says_so(pg: Pg, etl: dict[str, Any]) -> None:
    reader = of(etl)
    reader.schema()
    splits = reader.split(1)
    (remark,) = reader.remarks(splits)
    assert "row security applies to this login" in remark
    assert sum(batch.num_rows for split in splits for batch in reader.read(split)) == 3
    pg.psql("ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    reader = of(etl)
    reader.schema()
    assert reader.remarks(reader.split(1)) == []


def test_a_filtered_table_is_not_followed_by_its_log(pg: Pg, etl: dict[str, Any]) -> None:
    one = FeedOptions(slot=f"s_{pg.schema}", publication=f"p_{pg.schema}")
    several = replace(one, tables=f"{pg.schema}.t")
    reader = of(etl)
    with pytest.raises(SourceError, match="row security applies to this login on table"):
        reader.feed(one)
    feed = reader.tables_feed(several)
    with pytest.raises(SourceError, match="row security applies to this login on table"):
        feed.now()
    pg.psql(f"ALTER ROLE {etl['user']} BYPASSRLS")
    assert of(etl).feed(one).schema().names[:2] == ["id", "org"]
