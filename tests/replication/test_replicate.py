"""Replications between files of this machine: what each table becomes, and what a table that fails does."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import spark_channel
from spark_channel.errors import ChannelError, JobFileError
from spark_channel.replication import ReplicationReport

KEY = "0123456789abcdef0123"


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PII_KEY", KEY)


class Shop:
    """A source in SQLite, and a target beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "shop.db"

    def run(self, script: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            connection.executescript(script)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.folder / "dw.db")) as connection:
            return connection.execute(query).fetchall()

    def replicate(
        self,
        streams: Mapping[str, Any],
        target: Mapping[str, Any] | None = None,
        *,
        more: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> ReplicationReport:
        file = {
            "source": {"url": f"sqlite:{self.file}"},
            "target": target or {"url": f"sqlite:{self.folder}/dw.db"},
            "streams": streams,
            **(more or {}),
        }
        return spark_channel.replicate(None, file, **options)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.run(
        """
        CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT, phone TEXT);
        INSERT INTO users VALUES (1, 'a@x.example', '123456'), (2, 'b@x.example', NULL);
        CREATE TABLE "Odd.Name" (a TEXT); INSERT INTO "Odd.Name" VALUES ('x');
        CREATE TABLE "../up" (a TEXT); INSERT INTO "../up" VALUES ('y');
        CREATE TABLE empty (a INTEGER);
        CREATE TABLE audit_log (a INTEGER);
        """
    )
    return made


def states(report: ReplicationReport) -> dict[str, str]:
    return {each.stream: each.state for each in report.tables}


def why(report: ReplicationReport) -> str:
    return "\n".join(each.why for each in report.parked)


def test_all_tables_are_copied_again_and_again(shop: Shop) -> None:
    streams = {"*": {}, "audit_*": {"disabled": True}}
    for _ in range(2):
        report = shop.replicate(streams, more={"defaults": {"object": "copy_{table}"}})
        done = {"users": "done", "Odd.Name": "done", "../up": "done", "empty": "done"}
        assert states(report) == done, why(report)
        assert report.exit_code == 0
        assert report.rows == 4
    assert shop.rows("SELECT id FROM copy_users ORDER BY id") == [(1,), (2,)]
    assert shop.rows('SELECT a FROM "copy_Odd.Name"') == [("x",)]
    assert shop.rows("SELECT count(*) FROM copy_empty") == [(0,)]


@pytest.mark.parametrize("writer", ["parquet", "delta"])
def test_each_table_has_its_own_folder(shop: Shop, writer: str) -> None:
    target = {"path": str(shop.folder / "lake"), "writer": writer}
    for _ in range(2):
        report = shop.replicate({"*": {"object": "{schema}/{table}"}}, target)
        assert report.exit_code == 0, why(report)
    folders = {each.name for each in (shop.folder / "lake").iterdir()}
    assert folders == {"users", "Odd.Name", "empty", "audit_log", "~2E.~2Fup"}
    if writer == "delta":
        assert DeltaTable(str(shop.folder / "lake/users")).to_pyarrow_table().num_rows == 2
    else:
        assert report.tables[0].report is not None
        listed = spark_channel.transfer(
            None,
            {"name": "parquet", "path": str(shop.folder / "lake/users")},
            {"name": "sqlite", "url": f"sqlite:{shop.folder}/back.db", "dbtable": "users"},
        )
        assert listed.rows == 2


def test_a_table_that_fails_is_parked_and_the_others_are_copied(shop: Shop) -> None:
    shop.run("CREATE TABLE bad (n INTEGER); INSERT INTO bad VALUES ('no number')")
    report = shop.replicate({"*": {}, "userz": {}})
    assert report.exit_code == 3
    found = states(report)
    assert found.pop("bad") == found.pop("userz") == "parked"
    assert set(found.values()) == {"done"}
    assert "did you mean 'users'" in why(report)
    assert "n" in why(report)
    assert json.loads(report.to_json())["exit_code"] == 3
    shop.run("DELETE FROM bad")
    assert states(shop.replicate({"bad": {}})) == {"bad": "done"}


def test_two_tables_that_would_go_to_one_object_do_not_run(shop: Shop) -> None:
    report = shop.replicate({"users": {"object": "T"}, "empty": {"object": "t"}})
    assert states(report) == {"users": "parked", "empty": "parked"}
    assert "would go to one object" in why(report)


def test_select_and_patterns_that_match_nothing(shop: Shop) -> None:
    report = shop.replicate({"*": {}, "x*": {}}, select=["u*", "y*"])
    assert states(report) == {"users": "done"}
    assert list(report.notes) == [
        "streams.'x*' matches no table of the source",
        "--select y* matches no table of the source",
    ]


def test_one_limit_holds_for_all_tables(shop: Shop) -> None:
    rows = ", ".join("(1)" for _ in range(60))
    shop.run(
        "".join(f"CREATE TABLE t{n} (a INT); INSERT INTO t{n} VALUES {rows};" for n in range(4))
    )
    report = shop.replicate({"t?": {}}, more={"limit": {"rows_per_second": "200"}})
    assert report.exit_code == 0, why(report)
    assert report.rows == 240
    assert report.seconds > 0.7  # 240 rows at 200 a second, of which the first may come at once
    assert [limit for _, _, limit in report.windows] == ["200 rows/s"]


def test_what_no_table_can_be_read_from(shop: Shop) -> None:
    with pytest.raises(ChannelError, match="no catalog of tables"):
        spark_channel.replicate(
            None,
            {
                "source": {"path": str(shop.folder), "reader": "csv"},
                "target": {"url": "sqlite:dw.db"},
                "streams": {"*": {}},
            },
        )
    with pytest.raises(JobFileError, match=r"target: .*parqet"):
        shop.replicate({"*": {}}, {"path": "x", "writer": "parqet"})
