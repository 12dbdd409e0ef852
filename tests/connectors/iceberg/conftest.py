"""A catalog with the namespace `shop`, on a disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator["Catalog"]:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from tests.connectors.iceberg.helpers import shop

    with shop(tmp_path) as found:
        yield found
