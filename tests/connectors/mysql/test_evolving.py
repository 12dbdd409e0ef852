"""A copy by MariaDB's binary log while the columns of its source change."""

from pathlib import Path

import pytest

from tests.connectors.mysql.shop import Shop
from tests.connectors.sql.evolving import (
    Source,
    copy_much_while_columns_change,
    copy_while_columns_change,
)


def source_of(shop: Shop) -> Source:
    return Source(
        shop.sql,
        shop.login,
        {"binlog": "true"},
        "ALTER TABLE source MODIFY COLUMN {column} {type}",
        "(SELECT seq AS i FROM seq_1_to_{count}) numbers",
    )


@pytest.mark.timeout(120)
def test_a_copy_while_columns_change_is_equal(logged: Shop, tmp_path: Path) -> None:
    copy_while_columns_change(source_of(logged), tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_copies_of_many_changes_while_columns_change_are_equal(
    logged: Shop, tmp_path: Path, seed: int
) -> None:
    copy_much_while_columns_change(source_of(logged), tmp_path, seed)
