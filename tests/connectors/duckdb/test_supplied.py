"""A database file that came from elsewhere reaches nothing but itself."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from spark_channel.errors import SourceError, TargetError
from tests.connectors.duckdb.conftest import Duck

REACHES = {
    "a text": "SELECT content AS v FROM read_text('{folder}/other.txt')",
    "a glob": "SELECT file AS v FROM glob('{folder}/*')",
    "a csv": "SELECT * FROM read_csv('{folder}/other.txt', header = false, names = ['v'])",
    "a macro": "SELECT v FROM of_macro('{folder}/other.txt')",
}


@pytest.mark.parametrize("view", REACHES)
def test_a_view_reads_no_other_file_unless_the_option_allows_it(
    duck: Duck, tmp_path: Path, view: str
) -> None:
    (tmp_path / "other.txt").write_text("of another file")
    duck.sql("CREATE MACRO of_macro(f) AS TABLE SELECT content AS v FROM read_text(f)")
    duck.sql(f"CREATE VIEW t AS {REACHES[view].format(folder=tmp_path)}")
    with pytest.raises(SourceError, match="externalAccess"):
        duck.read()
    values = duck.read(externalAccess="true")["v"].to_pylist()
    assert any("other" in str(value) for value in values)


@pytest.mark.parametrize(
    "statement", ["ATTACH '{other}' AS other", "LOAD httpfs", "INSTALL httpfs"]
)
def test_no_statement_attaches_a_database_or_loads_an_extension(
    duck: Duck, tmp_path: Path, statement: str
) -> None:
    duck.sql("CREATE TABLE t (v INTEGER)")
    other = tmp_path / "other.duckdb"
    duckdb.connect(str(other)).close()
    with pytest.raises(SourceError, match="externalAccess"):
        duck.read(sessionInitStatement=statement.format(other=other))


def test_external_access_cannot_be_taken_back_by_a_statement(duck: Duck) -> None:
    duck.sql("CREATE TABLE t (v INTEGER)")
    with pytest.raises(SourceError, match=r"enable.external.access"):
        duck.read(sessionInitStatement="SET enable_external_access = true")


def test_a_write_into_a_supplied_file_runs_no_script_that_reads_others(
    duck: Duck, tmp_path: Path
) -> None:
    (tmp_path / "other.txt").write_text("of another file")
    duck.sql("CREATE TABLE t (n INTEGER)")
    copied = f"CREATE TABLE copied AS SELECT content FROM read_text('{tmp_path}/other.txt')"
    with pytest.raises(TargetError, match="externalAccess"):
        duck.write(pa.table({"n": pa.array([1], pa.int32())}), preSql=copied)
    assert duck.sql("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize(
    "statement", ["SET temp_directory = '{folder}'", "SET allowed_paths = ['{folder}']"]
)
def test_a_setting_that_is_locked_is_named_as_one(
    duck: Duck, tmp_path: Path, statement: str
) -> None:
    duck.sql("CREATE TABLE t (n INTEGER)")
    with pytest.raises(SourceError, match=r"this setting is locked.*externalAccess"):
        duck.read(sessionInitStatement=statement.format(folder=tmp_path))
