"""A login with rights on some columns: the server hides the others, and what it says of keys."""

from collections.abc import Iterator
from typing import Any

import pytest

from spark_channel.connectors import load_reader
from spark_channel.errors import SourceError
from tests.connectors.mysql.shop import Shop


@pytest.fixture
def etl(shop: Shop) -> Iterator[dict[str, Any]]:
    """The options of a login that may read two of three columns; (id, part) is unique, and `id` is not."""
    shop.sql(
        "CREATE TABLE t (id int, part int, v varchar(9), PRIMARY KEY (id, part));"
        "INSERT INTO t WITH RECURSIVE r (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 200) "
        "SELECT i DIV 8, i MOD 8, 'v' FROM r;"
        f"CREATE USER etl@'127.0.0.1' IDENTIFIED BY 'p'; GRANT SELECT (id, v) ON {shop.database}.t TO etl@'127.0.0.1'"
    )
    yield {"url": shop.login["url"], "user": "etl", "password": "p", "dbtable": "t"}
    shop.sql("DROP USER etl@'127.0.0.1'")


def test_a_table_with_hidden_columns_is_refused_by_name(shop: Shop, etl: dict[str, Any]) -> None:
    for options in ({}, {"where": "id > 1"}, {"statementseconds": "5"}):
        reader, _ = load_reader({**etl, **options})
        with pytest.raises(
            SourceError,
            match=r"may read only the columns id, v of table .*run GRANT SELECT ON "
            rf"`{shop.database}`\.`t` TO `etl`@`127\.0\.0\.1`, or choose columns",
        ):
            reader.schema()
    shop.sql(
        f"CREATE VIEW w AS SELECT * FROM t; GRANT SELECT (id, v) ON {shop.database}.w TO etl@'127.0.0.1'"
    )
    reader, _ = load_reader({**etl, "dbtable": "w"})
    with pytest.raises(SourceError, match="may read only the columns id, v of view"):
        reader.schema()


@pytest.mark.parametrize(
    "options", [{}, {"statementseconds": "5", "fetchsize": "3"}, {"partitioncolumn": "id"}]
)
def test_columns_that_are_named_are_read_whole(
    etl: dict[str, Any], options: dict[str, str]
) -> None:
    """The server shows `id` as the whole of a unique key."""
    reader, _ = load_reader({**etl, "columns": "id,v", **options})
    reader.schema()
    assert reader.primary_key() == ()
    with reader.reading() as read:
        found = sum(batch.num_rows for split in reader.split(3) for batch in read(split))
    assert found == 200


def test_rights_on_every_column_are_a_right_on_the_table(shop: Shop, etl: dict[str, Any]) -> None:
    shop.sql(f"GRANT SELECT (part) ON {shop.database}.t TO etl@'127.0.0.1'")
    reader, _ = load_reader(etl)
    assert reader.schema().names == ["id", "part", "v"]
    assert reader.primary_key() == ("id", "part")


def test_a_table_that_the_login_may_not_see_may_be_there(shop: Shop, etl: dict[str, Any]) -> None:
    shop.sql("CREATE TABLE hidden (id int)")
    reader, _ = load_reader({**etl, "dbtable": "hidden"})
    run = rf"run GRANT SELECT ON `{shop.database}`\.`hidden` TO `etl`@`127\.0\.0\.1`"
    said = rf"table 'hidden' does not exist in .*, or this user may not see it \(.*{run}\); its tables: t$"
    with pytest.raises(SourceError, match=said):
        reader.schema()


def test_a_login_without_the_database_is_told_what_to_grant(
    shop: Shop, etl: dict[str, Any]
) -> None:
    shop.sql(f"REVOKE SELECT (id, v) ON {shop.database}.t FROM etl@'127.0.0.1'")
    reader, _ = load_reader(etl)
    said = rf"run GRANT SELECT ON `{shop.database}`\.`t` TO 'etl'@'127\.0\.0\.1'"
    with pytest.raises(SourceError, match=said) as refused:
        reader.schema()
    assert refused.value.is_of_input
