"""A database file, and hands to read and write it: `Db.sql` is Python's own sqlite3, the witness."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spark_channel.connectors.sqlite import SqliteReader
from tests.connectors.sql.one_database import OneDatabase


@dataclass
class Db(OneDatabase[SqliteReader]):
    path: Path
    reader_type = SqliteReader

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, parameters).fetchall()

    def many(self, statement: str, rows: Iterator[tuple[Any, ...]] | list[tuple[Any, ...]]) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.executemany(statement, rows)

    @property
    def login(self) -> dict[str, str]:
        return {"path": str(self.path)}

    def staged(self) -> list[Path]:
        return [
            path
            for path in self.path.parent.rglob("*")
            if ".spark-channel" in str(path.relative_to(self.path.parent))
        ]


AsNobody = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def as_nobody(tmp_path: Path) -> AsNobody:
    """Run as a user without rights: root may do everything, so it gives up its rights for a while."""

    @contextmanager
    def become() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        for directory in (tmp_path, *tmp_path.parents[:-2]):
            directory.chmod(directory.stat().st_mode | 0o011)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)

    return become


@pytest.fixture
def db(tmp_path: Path) -> Db:
    return Db(tmp_path / "orders.db")
