"""`preSql` and `postSql` whose statements end the transaction that writes the rows: nothing is published by halves."""

import pyarrow as pa
import pytest

from spark_channel.errors import TargetError
from tests.connectors.mysql.shop import Shop

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def shelf(shop: Shop) -> Shop:
    """A table, and a procedure whose DDL commits whatever transaction calls it."""
    shop.sql("CREATE TABLE t (id BIGINT PRIMARY KEY) ENGINE=InnoDB")
    shop.sql("CREATE TABLE seen (what VARCHAR(20)) ENGINE=InnoDB")
    shop.sql("CREATE PROCEDURE clears() CREATE TABLE IF NOT EXISTS made (a INT)")
    shop.sql("CREATE PROCEDURE notes() INSERT INTO seen VALUES ('noted')")
    return shop


@pytest.mark.parametrize("statement", ["CALL clears()", "EXECUTE IMMEDIATE 'COMMIT'"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_statement_before_the_rows_that_commits_is_found_before_a_row_is_written(
    shelf: Shop, statement: str, overwrite: bool
) -> None:
    shelf.sql("INSERT INTO t VALUES (9)")
    with pytest.raises(TargetError, match=r"'preSql'.*ended the transaction.*startSql"):
        shelf.write(ROWS, commit="job", overwrite=overwrite, preSql=f"{statement}; DELETE FROM t")
    assert shelf.rows("SELECT id FROM t") == [("9",)]
    assert shelf.staged() == []
    shelf.write(ROWS, commit="job", overwrite=overwrite)
    assert len(shelf.rows("SELECT id FROM t")) == (3 if overwrite else 4)


@pytest.mark.parametrize("statement", ["CALL clears()", "EXECUTE IMMEDIATE 'COMMIT'"])
def test_a_statement_behind_the_rows_that_commits_does_not_let_a_rerun_add_them_again(
    shelf: Shop, statement: str
) -> None:
    def write() -> None:
        shelf.write(ROWS, commit="job", txn=("a", 1), postSql=f"{statement}; DELETE FROM t")

    with pytest.raises(TargetError, match=r"'postSql'.*ended the transaction.*are in the table"):
        write()
    assert len(shelf.rows("SELECT id FROM t")) == 3
    write()  # the pair is published
    assert len(shelf.rows("SELECT id FROM t")) == 3
    assert shelf.staged() == []


def test_a_procedure_that_stays_in_the_transaction_is_called(shelf: Shop) -> None:
    shelf.write(ROWS, commit="job", preSql="CALL notes()", postSql="CALL notes()")
    assert shelf.rows("SELECT what FROM seen") == [("noted",), ("noted",)]
    with pytest.raises(TargetError):
        # The keys are there: all is taken back.
        shelf.write(ROWS, commit="job", postSql="CALL notes()")
    assert len(shelf.rows("SELECT what FROM seen")) == 2


def test_ddl_before_rows_that_tasks_commit_runs_by_itself(shelf: Shop) -> None:
    shelf.write(ROWS, commit="task", preSql="CREATE TABLE other (a INT); CALL notes()")
    assert shelf.rows("SELECT what FROM seen") == [("noted",)]


def test_a_committing_statement_before_rows_that_tasks_commit_is_found_too(shelf: Shop) -> None:
    with pytest.raises(TargetError, match=r"'preSql'.*ended the transaction"):
        shelf.write(ROWS, commit="task", preSql="CALL clears()")
    assert shelf.rows("SELECT id FROM t") == []
