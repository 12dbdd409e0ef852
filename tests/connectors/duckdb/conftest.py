"""A DuckDB file, and hands to read and write it: `Duck.sql` is DuckDB's own client, the witness."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from spark_channel.connectors.duckdb import DuckdbReader
from tests.connectors.sql.one_database import OneDatabase


@dataclass
class Duck(OneDatabase[DuckdbReader]):
    path: Path
    reader_type = DuckdbReader

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        connection = duckdb.connect(str(self.path))
        try:
            connection.execute("SET TimeZone = 'UTC'")
            found: list[tuple[Any, ...]] = connection.execute(
                statement, list(parameters)
            ).fetchall()
            return found
        finally:
            connection.close()

    @property
    def login(self) -> dict[str, str]:
        return {"path": str(self.path)}

    def staged(self) -> list[Path]:
        return [path for path in self.path.parent.rglob("*") if ".spark-channel" in str(path)]


@pytest.fixture
def duck(tmp_path: Path) -> Duck:
    return Duck(tmp_path / "orders.duckdb")
