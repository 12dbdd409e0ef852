"""The connector of a third party, installed as its wheel would be: a package and its metadata on Python's path."""

import re
import sys
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot import exp

from tests.servers.firebird import FirebirdServer

__all__ = ["INSTALLED", "install", "run_each", "stored"]

INSTALLED = Path(__file__).parent / "installed"


def install() -> None:
    """Put it on Python's path, where its entry point is found."""
    if str(INSTALLED) not in sys.path:
        sys.path.append(str(INSTALLED))


def stored(name: str) -> str:
    """A name as Firebird keeps it when it is not quoted; names that must be quoted stay."""
    return name.upper() if re.fullmatch("[a-z][a-z0-9_]*", name) else name


def run_each(server: FirebirdServer, text: str, database: str) -> list[tuple[Any, ...]]:
    """`text`; where it inserts several rows, which Firebird's INSERT cannot, one INSERT with parameters for each."""
    if not re.search(r"^INSERT\b.*\bVALUES\b", text, re.DOTALL):
        return server.sql(text, database=database)
    tree = sqlglot.parse_one(text)
    rows = [
        [_value(each) for each in row.expressions] for row in tree.expression.find_all(exp.Tuple)
    ]
    table = re.match(r"INSERT INTO (.*?) VALUES\b", text, re.DOTALL)
    assert table is not None
    marks = ", ".join("?" for _ in rows[0])
    server.insert(f"INSERT INTO {table[1]} VALUES ({marks})", rows, database=database)
    return []


def _value(node: Any) -> Any:
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Neg):
        return -_value(node.this)
    if node.is_string:
        return node.name
    return int(node.name) if node.is_int else float(node.name)
