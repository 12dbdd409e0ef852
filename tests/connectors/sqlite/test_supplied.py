"""A SQLite file that came from elsewhere is not trusted with what has effects outside of it."""

import pytest

from spark_channel.errors import SourceError
from tests.connectors.sqlite.conftest import Db

VIEWS = {
    "the paths of open files": "SELECT file AS v FROM pragma_database_list",
    "pages of the file": "SELECT name AS v FROM dbstat",
    "a function with effects": "SELECT load_extension('none') AS v",
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_uses_nothing_that_only_trusted_files_may_use(db: Db, view: str) -> None:
    db.sql("CREATE TABLE rows (n INTEGER)")
    db.sql(f"CREATE VIEW t AS {VIEWS[view]}")
    with pytest.raises(SourceError, match="unsafe use of"):
        db.read(customSchema="v STRING")


def test_a_statement_of_the_session_trusts_the_file(db: Db) -> None:
    db.sql("CREATE TABLE rows (n INTEGER)")
    db.sql(f"CREATE VIEW t AS {VIEWS['the paths of open files']}")
    trusted = db.read(customSchema="v STRING", sessionInitStatement="PRAGMA trusted_schema = ON")
    assert trusted["v"].to_pylist() == [str(db.path)]
