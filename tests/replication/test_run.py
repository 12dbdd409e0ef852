"""Replications between files of this machine: what each table becomes, and what a table that fails does."""

import json
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

import spark_channel
from spark_channel.clock import utc_now
from spark_channel.connectors import load_reader
from spark_channel.errors import (
    ChannelError,
    JobFileError,
    OptionError,
    ServiceUnavailableError,
    SourceError,
    TargetError,
)
from spark_channel.local import carry_out_here, local_engine
from spark_channel.progress import JobProgress, JobSpec
from spark_channel.replication import ReplicationReport, TableOutcome, load_replication
from spark_channel.replication.report import TablesProgress
from spark_channel.replication.run import RunSettings, TableRun, _Run, replicate_on
from spark_channel.replication.status import TableStatus, status_of
from spark_channel.replication.table_run import writer_of
from spark_channel.replication.tables import find_tables
from spark_channel.testing.clock import VirtualClock
from tests.servers.ports import free_port

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

    def status(self, streams: Mapping[str, Any]) -> list[TableStatus]:
        source, target = {"url": f"sqlite:{self.file}"}, {"url": f"sqlite:{self.folder}/dw.db"}
        return status_of(load_replication({"source": source, "target": target, "streams": streams}))


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
    with pytest.raises(
        JobFileError, match=r"target: 'object' is not an option.*defaults or a stream"
    ):
        shop.replicate({"*": {}}, {"url": "sqlite:dw.db", "object": "x"})
    with pytest.raises(JobFileError, match=r"target: unknown option 'lokTimeout'"):
        shop.replicate({"*": {}}, {"url": "sqlite:dw.db", "lokTimeout": "1"})


EVENTS = {"events": {"mode": "incremental", "update_key": "n"}}


def events(shop: Shop, first: int, last: int) -> None:
    rows = ", ".join(f"({n}, 'e{n}')" for n in range(first, last + 1))
    shop.run(
        "CREATE TABLE IF NOT EXISTS events (n INTEGER PRIMARY KEY, what TEXT);"
        f"INSERT INTO events (n, what) VALUES {rows}"
    )


def target_of(shop: Shop, where: str) -> dict[str, str] | None:
    return None if where == "database" else {"path": str(shop.folder / "lake"), "writer": where}


def arrived(shop: Shop, where: str) -> list[int]:
    """The numbers of the events in the target."""
    reader = (
        {"url": f"sqlite:{shop.folder}/dw.db", "dbtable": "events"}
        if where == "database"
        else {"path": str(shop.folder / "lake/events"), "reader": where}
    )
    out = {"name": "json", "path": str(shop.folder / "out")}
    spark_channel.transfer(None, reader, out, mode="overwrite")
    text = "".join(each.read_text() for each in (shop.folder / "out").glob("*.json*"))
    return sorted(json.loads(line)["n"] for line in text.splitlines())


@pytest.mark.parametrize("where", ["database", "parquet", "delta"])
def test_an_incremental_table_adds_each_row_once(shop: Shop, where: str) -> None:
    target = target_of(shop, where)
    events(shop, 1, 5)
    found: list[tuple[str, int]] = []
    for last in (5, 5, 7, 7):
        if last == 7 and len(found) == 2:
            events(shop, 6, 7)
        report = shop.replicate(EVENTS, target)
        assert report.exit_code == 0, why(report)
        found.append((report.tables[0].state, report.rows))
        assert arrived(shop, where) == list(range(1, last + 1))
    assert found == [("done", 5), ("unchanged", 0), ("done", 2), ("unchanged", 0)]


def test_rows_with_a_primary_key_are_updated(shop: Shop) -> None:
    shop.run(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, at TIMESTAMP, n INTEGER);"
        "INSERT INTO stock VALUES (1, '2026-01-01 10:00:00', 1), (2, '2026-01-01 10:00:00', 2)"
    )
    streams = {"stock": {"mode": "incremental", "update_key": "at", "primary_key": "id"}}
    assert shop.replicate(streams).rows == 2
    no_key = {"stock": {"mode": "incremental", "update_key": "at", "object": "other"}}
    assert "give primary_key" in why(shop.replicate(no_key))
    shop.run("UPDATE stock SET n = 20, at = '2026-01-01 10:00:00.5' WHERE id = 2")
    # As late as rows that are there.
    shop.run("INSERT INTO stock VALUES (3, '2026-01-01 10:00:00', 3)")
    report = shop.replicate(streams)
    assert report.exit_code == 0, why(report)
    assert shop.rows("SELECT id, n FROM stock ORDER BY id") == [(1, 1), (2, 20), (3, 3)]


@pytest.mark.parametrize(("default", "value"), [("'open'", "open"), ("NULL", None)])
def test_older_rows_get_the_values_of_a_new_column(
    shop: Shop, default: str, value: str | None
) -> None:
    shop.run(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO stock VALUES (1, 1), (2, 2)"
    )
    streams = {"stock": {"mode": "incremental", "update_key": "id", "primary_key": "id"}}
    shop.replicate(streams)
    shop.run(
        f"ALTER TABLE stock ADD COLUMN state TEXT DEFAULT {default}; INSERT INTO stock VALUES (3, 3, NULL)"
    )
    shop.run("DELETE FROM stock WHERE id = 1")
    report = shop.replicate(streams)
    assert report.exit_code == 0, why(report)
    assert "column 'state' added to the target" in report.tables[0].why
    assert ("all rows are read again" in report.tables[0].why) == (value is not None)
    kept = [value for (value,) in shop.rows("SELECT state FROM stock ORDER BY id")]
    assert kept == [None, value, None], "an incremental table keeps what its source has deleted"
    assert shop.replicate(streams).tables[0].why == ""
    (known,) = shop.status(streams)
    assert known.columns == report.tables[0].why
    assert known.columns_at.startswith("20")


def test_the_status_of_a_table_says_which_columns_were_left_out(shop: Shop) -> None:
    streams = {"users": {"contract": {"columns": "discard_value"}}}
    shop.replicate(streams)
    assert shop.status(streams)[0].columns == ""
    shop.run("ALTER TABLE users ADD COLUMN age INTEGER")
    shop.replicate(streams)
    assert shop.status(streams)[0].columns == "column 'age' left out"


@pytest.mark.parametrize("where", ["database", "parquet", "delta"])
def test_older_rows_that_cannot_be_updated_are_told(shop: Shop, where: str) -> None:
    events(shop, 1, 3)
    target = target_of(shop, where)
    shop.replicate(EVENTS, target)
    shop.run("ALTER TABLE events ADD COLUMN state TEXT DEFAULT 'open'")
    events(shop, 4, 4)
    report = shop.replicate(EVENTS, target)
    assert report.exit_code == 0, why(report)
    said = report.tables[0].why
    assert "NULL in the rows that were copied before: --full-refresh --select 'events'" in said
    assert shop.replicate(EVENTS, target).tables[0].why == ""


def test_of_two_runs_at_a_time_one_adds_the_rows(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inner run publishes between the outer one's look at the source and its publication."""
    from spark_channel.local import run as local

    events(shop, 1, 3)
    shop.replicate(EVENTS)
    events(shop, 4, 6)
    carry_out, inner = local.carry_out_here, []

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(local, "carry_out_here", carry_out)
        events(shop, 7, 8)
        inner.append(shop.replicate(EVENTS))
        return carry_out(*given)

    monkeypatch.setattr(local, "carry_out_here", overtaken)
    outer = shop.replicate(EVENTS)
    assert inner[0].rows == 5
    assert outer.rows == 0
    assert shop.rows("SELECT n FROM events ORDER BY n") == [(n,) for n in range(1, 9)]


@pytest.mark.parametrize("where", ["database", "parquet", "delta"])
def test_an_increment_that_was_planned_too_early_is_refused(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The inner run ends below the outer one's position: the rows between are in both."""
    from spark_channel.local import run as local

    target = target_of(shop, where)

    events(shop, 1, 3)
    shop.replicate(EVENTS, target)
    events(shop, 4, 6)
    carry_out, inner = local.carry_out_here, []

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(local, "carry_out_here", carry_out)
        shop.run(
            "CREATE TABLE later AS SELECT * FROM events WHERE n > 5; DELETE FROM events WHERE n > 5"
        )
        inner.append(shop.replicate(EVENTS, target))
        shop.run("INSERT INTO events SELECT * FROM later")
        return carry_out(*given)

    monkeypatch.setattr(local, "carry_out_here", overtaken)
    outer = shop.replicate(EVENTS, target)
    assert inner[0].rows == 2
    assert "another run has published meanwhile" in why(outer)
    assert shop.replicate(EVENTS, target).rows == 1
    assert arrived(shop, where) == [*range(1, 7)]


def test_a_target_that_was_dropped_gets_all_rows_again(shop: Shop) -> None:
    events(shop, 1, 3)
    shop.replicate(EVENTS)
    with closing(sqlite3.connect(shop.folder / "dw.db")) as connection:
        connection.execute("DROP TABLE events")
    assert shop.replicate(EVENTS).rows == 3
    (shop.folder / "dw.db").unlink()
    assert shop.replicate(EVENTS).rows == 3


def test_a_table_without_a_record_is_not_replaced_unless_asked(shop: Shop) -> None:
    events(shop, 1, 3)
    with closing(sqlite3.connect(shop.folder / "dw.db")) as connection:
        connection.executescript(
            "CREATE TABLE events (n INTEGER, what TEXT); INSERT INTO events VALUES (9, 'mine')"
        )
    report = shop.replicate(EVENTS)
    assert "--full-refresh --select 'events'" in report.tables[0].why
    assert shop.rows("SELECT n FROM events") == [(9,)]
    assert shop.replicate(EVENTS, full_refresh=True).rows == 3
    assert shop.replicate(EVENTS).rows == 0
    changed = {"events": {**EVENTS["events"], "where": "n > 1"}}
    assert "where or columns" in why(shop.replicate(changed))


def test_an_empty_table_and_one_that_shrank(shop: Shop) -> None:
    events(shop, 1, 1)
    shop.run("DELETE FROM events")
    assert shop.replicate(EVENTS).exit_code == 0
    assert shop.rows("SELECT count(*) FROM events") == [(0,)]
    events(shop, 1, 4)
    assert shop.replicate(EVENTS).rows == 4
    shop.run("DELETE FROM events WHERE n > 2")
    assert shop.replicate(EVENTS, full_refresh=True).rows == 2
    events(shop, 3, 3)
    assert shop.replicate(EVENTS).rows == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"update_key": "x"}, "update_key names 'x', which table 'events' does not have"),
        ({"update_key": "what"}, "what"),
        ({}, "needs update_key"),
        ({"update_key": "n", "columns": {"n": "sha256"}}, "update_key 'n' has mask sha256"),
        (
            {"update_key": "n", "primary_key": "what", "columns": {"what": "null"}},
            "can make two keys equal",
        ),
    ],
)
def test_an_update_key_that_is_none(shop: Shop, options: dict[str, Any], said: str) -> None:
    events(shop, 1, 2)
    report = shop.replicate({"events": {"mode": "incremental", **options}})
    assert said in why(report)


def test_drift_follows_the_contract(shop: Shop) -> None:
    def run(**contract: str) -> ReplicationReport:
        return shop.replicate({"users": {"contract": contract}})

    assert "contract.tables is freeze" in why(run(tables="freeze"))
    assert states(run(tables="discard_row")) == {"users": "unchanged"}
    assert run().rows == 2
    shop.run("ALTER TABLE users ADD COLUMN age INTEGER; UPDATE users SET age = 7 WHERE id = 1")
    said = why(run(columns="freeze"))
    assert "ADD COLUMN age (int64)" in said
    assert run(columns="discard_value").rows == 2
    assert run(columns="discard_row").rows == 1
    assert shop.rows("SELECT id FROM users") == [(2,)]
    assert run().rows == 2
    assert shop.rows("SELECT id, age FROM users ORDER BY id") == [(1, 7), (2, None)]
    shop.run(
        "ALTER TABLE users DROP COLUMN age; ALTER TABLE users ADD COLUMN age TEXT; UPDATE users SET age = id || 'x'"
    )
    assert "'age' is string and was int64, and contract.data_type is freeze" in why(run())
    assert run(data_type="discard_value").rows == 2
    assert shop.rows("SELECT id, age FROM users ORDER BY id") == [(1, None), (2, None)]
    assert run(data_type="discard_row").rows == 0


@pytest.mark.parametrize("writer", ["sqlite", "parquet", "delta"])
@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_a_masked_column_under_a_new_name_is_not_copied_open(
    shop: Shop, writer: str, mode: str
) -> None:
    target = {
        "sqlite": None,
        "parquet": {"path": str(shop.folder / "lake"), "writer": "parquet"},
        "delta": {"path": str(shop.folder / "lake"), "writer": "delta"},
    }[writer]
    streams: dict[str, Any] = {
        "users": {
            "mode": mode,
            "columns": {"*.email": "sha256"},
            **({"update_key": "id"} if mode == "incremental" else {}),
        }
    }
    assert not shop.replicate(streams, target).parked
    shop.run("ALTER TABLE users RENAME email TO mail; INSERT INTO users VALUES (3, 'open', '5')")
    parked = shop.replicate(streams, target).parked
    assert ["'mail' is new" in each.why for each in parked] == [True]
    streams["users"]["columns"] |= {"mail": "keep"}
    if mode == "full":
        assert not shop.replicate(streams, target).parked


def test_load_columns(shop: Shop) -> None:
    report = shop.replicate({"users": {"load_columns": "true"}})
    assert report.exit_code == 0, why(report)
    assert shop.rows("SELECT DISTINCT _run_id FROM users") == [(report.run_id,)]
    assert shop.rows("SELECT count(_loaded_at) FROM users") == [(2,)]


@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("where", ["database", "parquet", "delta"])
def test_a_second_file_that_writes_one_object_names_the_first(
    shop: Shop, where: str, mode: str
) -> None:
    events(shop, 1, 3)
    target = target_of(shop, where) or {"url": f"sqlite:{shop.folder}/dw.db"}
    file = {
        "source": {"url": f"sqlite:{shop.file}"},
        "target": target,
        "streams": {"events": {"mode": mode, "update_key": "n"}},
    }
    said = []
    for number, name in enumerate(("night.yml", "night.yml", "day.yml", "day.yml")):
        events(shop, 4 + number, 4 + number)
        (shop.folder / name).write_text(yaml.safe_dump(file))
        report = spark_channel.replicate(None, shop.folder / name)
        assert report.exit_code == 0, why(report)
        said.append(report.tables[0].why)
    assert said[:2] + said[3:] == ["", "", ""]
    assert "was written by file night.yml at 20" in said[2]
    assert "and now by day.yml" in said[2]
    assert arrived(shop, where) == list(range(1, 8))


def test_status_and_reset(shop: Shop) -> None:
    from spark_channel.replication.config import load_replication
    from spark_channel.replication.status import reset_tables

    events(shop, 1, 3)
    streams = {**EVENTS, "users": {}, "gone": {}}
    file = load_replication(
        {
            "source": {"url": f"sqlite:{shop.file}"},
            "target": {"url": f"sqlite:{shop.folder}/dw.db"},
            "streams": streams,
        }
    )
    assert {each.stream: each.state for each in status_of(file)} == {
        "events": "not copied",
        "users": "not copied",
        "gone": "unknown",
    }
    shop.replicate(streams)
    found = {each.stream: each for each in status_of(file)}
    assert (found["events"].rows, found["events"].position) == (3, 3)
    assert (found["users"].rows, found["users"].state) == (2, "copied")
    assert found["events"].published_at
    assert reset_tables(file, ["ev*"]) == ["events"]
    assert {each.stream: each.state for each in status_of(file)}["events"] == "reset"
    with pytest.raises(OptionError, match="reset got nothing_like_it"):
        reset_tables(file, ["nothing_like_it"])
    with pytest.raises(OptionError, match="reset got no table"):
        reset_tables(file, [])
    events(shop, 4, 4)
    assert shop.replicate(EVENTS).rows == 4
    assert shop.rows("SELECT count(*) FROM events") == [(4,)]


def test_one_progress_adds_up_all_tables() -> None:
    said: list[str] = []
    clock = VirtualClock()
    progress = TablesProgress(said.append, clock)
    assert progress.line() == ""
    running = [JobProgress(name, JobSpec("transfer")) for name in ("a", "b")]
    for each in running:
        progress.job_opened(each)
    progress.table_ended(TableOutcome("shop.x", "x", "full", "done", rows=7, seconds=1), 1, 3)
    assert progress.line() == "1 of 3 tables done, 2 running: 7 rows, 0 rows/s"
    clock.advance(20)
    assert progress.line() == "1 of 3 tables done, 2 running: 7 rows, 0 rows/s"
    progress.planned(3, 28)
    clock.advance(10)
    assert (
        progress.line() == "1 of 3 tables done, 2 running: 7 rows of about 28, 0 rows/s, ETA 0:30"
    )
    progress.job_closed(running[0])
    progress.table_ended(TableOutcome("shop.y", "", "full", "parked"), 2, 3)
    assert progress.line().startswith("2 of 3 tables done, 1 running")
    assert said == ["1/3 shop.x -> x: 7 rows in 1.0 s", "2/3 shop.y: parked in 0.0 s"]


def test_many_small_tables_cost_little_each(shop: Shop) -> None:
    """In CPU time of this process, which another load on the machine does not change much."""
    shop.run(
        "".join(f"CREATE TABLE m{n} (a INT); INSERT INTO m{n} VALUES ({n});" for n in range(31))
    )
    shop.replicate({"m30": {}})  # what is imported and made once
    began = time.process_time()
    report = shop.replicate({"m*": {}}, select=["m?", "m1?", "m2?"])
    seconds = time.process_time() - began
    assert (len(report.tables), report.rows, report.exit_code) == (30, 30, 0), why(report)
    assert seconds / 30 < 0.3


def test_rows_that_share_the_highest_update_key_wait_for_a_higher_one(shop: Shop) -> None:
    """A position is one number: it cannot say which rows of a value were copied."""
    shop.run(
        "CREATE TABLE log (id INTEGER PRIMARY KEY, day INTEGER);"
        "INSERT INTO log VALUES (1, 1), (2, 1), (3, 2)"
    )
    streams = {"log": {"mode": "incremental", "update_key": "day"}}
    assert [shop.replicate(streams).rows, shop.replicate(streams).rows] == [2, 0]
    shop.run("INSERT INTO log VALUES (4, 2), (5, 3)")
    assert shop.replicate(streams).rows == 2
    assert shop.rows("SELECT id FROM log ORDER BY id") == [(1,), (2,), (3,), (4,)]


def test_a_mask_of_the_stream_counts_more_than_a_pattern_of_the_defaults(shop: Shop) -> None:
    defaults = {"columns": {"*.email": "null", "*.e*": "keep"}}
    report = shop.replicate(
        {"users": {"columns": {"*.email": "sha256"}}}, more={"defaults": defaults}
    )
    assert report.exit_code == 0, why(report)
    assert shop.rows("SELECT id FROM users WHERE email LIKE '%example%'") == []


def test_a_mask_that_names_a_column_in_full_names_one_that_is_there(shop: Shop) -> None:
    right = {"defaults": {"columns": {"users.email": "sha256"}}}
    assert shop.replicate({"users": {}, "empty": {}}, more=right).exit_code == 0
    for wrong in ("users.emial", "usres.email", "main.users.email"):
        report = shop.replicate({"users": {"columns": {wrong: "sha256"}}})
        assert f"columns names {wrong!r}" in why(report)


def test_two_tables_of_one_object_do_not_run_when_one_is_selected(shop: Shop) -> None:
    streams = {"users": {"object": "T"}, "empty": {"object": "t"}}
    assert "would go to one object" in why(shop.replicate(streams, select=["users"]))


@pytest.mark.parametrize("given", [{"where": "id > 1"}, {"source_options": {"fetchsize": "10"}}])
def test_what_does_not_hold_for_a_table_that_is_followed_is_refused(
    shop: Shop, given: dict[str, Any]
) -> None:
    report = shop.replicate({"users": {"mode": "full_then_changes", **given}}, full_refresh=True)
    assert "--full-refresh does not hold" in report.notes[0]
    assert "mode full_then_changes" in why(report)
    assert next(iter(given)) in why(report)


def test_no_table_goes_into_a_table_of_the_source(shop: Shop) -> None:
    same = {"url": f"sqlite:{shop.file}"}
    masks = {"defaults": {"columns": {"*.email": "sha256"}}}
    report = shop.replicate({"users": {}, "empty": {"object": "other"}}, same, more=masks)
    assert states(report) == {"users": "parked", "empty": "done"}
    assert "the target 'users' is the source's table itself" in why(report)
    for _ in range(2):
        report = shop.replicate({"*users": {"object": "copy_{table}"}}, same)
    assert states(report) == {"users": "done"}
    assert report.notes == ("copy_users is not copied: users goes into it",)
    named = {"*users": {"object": "copy_{table}"}, "copy_users": {}}
    report = shop.replicate(named, same)
    assert states(report) == {"users": "done", "copy_users": "parked"}
    assert "users goes into this table, 'copy_users': disable it" in why(report)
    with closing(sqlite3.connect(shop.file)) as connection:
        assert connection.execute(
            "SELECT count(*) FROM users WHERE email LIKE '%@%'"
        ).fetchone() == (2,)
        assert (
            connection.execute(
                "SELECT name FROM sqlite_master WHERE name LIKE 'copy_copy%'"
            ).fetchall()
            == []
        )


@pytest.mark.parametrize("select", [[], ["userz"], ["audit_log"]])
def test_a_run_that_copies_no_table_is_an_error(shop: Shop, select: list[str]) -> None:
    streams = {"user?": {}, "audit_*": {"disabled": True}} if select else {"x*": {}}
    with pytest.raises(OptionError, match="no table is copied"):
        shop.replicate(streams, select=select)


def test_files_that_cannot_be_read_are_not_replaced(shop: Shop) -> None:
    """Those of the first run, and those that hold rows which the source has no more."""
    target, folder = target_of(shop, "parquet"), shop.folder / "lake" / "events"
    events(shop, 1, 3)
    folder.mkdir(parents=True)
    (folder / "mine.parquet").write_bytes(b"no parquet")
    assert "has no record of this stream" in why(shop.replicate(EVENTS, target))
    assert (folder / "mine.parquet").read_bytes() == b"no parquet"
    (folder / "mine.parquet").unlink()
    assert shop.replicate(EVENTS, target).rows == 3
    damaged = min(folder.glob("part-*"))
    rows = damaged.read_bytes()
    damaged.write_bytes(b"damaged for a while")
    shop.run("DELETE FROM events; INSERT INTO events VALUES (9, 'e9')")
    shop.replicate(EVENTS, target)
    damaged.write_bytes(rows)
    assert arrived(shop, "parquet") == [1, 2, 3, 9]


def test_a_target_that_is_missing_for_a_while_keeps_its_record(shop: Shop) -> None:
    events(shop, 1, 3)
    shop.replicate(EVENTS)
    freeze = {"events": {**EVENTS["events"], "contract": {"tables": "freeze"}}}
    shop.run("DELETE FROM events; INSERT INTO events VALUES (9, 'e9')")
    for rename in ("events RENAME TO kept", "kept RENAME TO events"):
        with closing(sqlite3.connect(shop.folder / "dw.db")) as connection:
            connection.execute(f"ALTER TABLE {rename}")
        report = shop.replicate(freeze)
    assert (report.rows, why(report)) == (1, "")
    assert shop.rows("SELECT n FROM events ORDER BY n") == [(1,), (2,), (3,), (9,)]


def test_a_source_whose_rows_went_back_is_no_silence(shop: Shop) -> None:
    events(shop, 1, 3)
    shop.replicate(EVENTS)
    assert shop.replicate(EVENTS).tables[0].why == ""
    shop.run("DROP TABLE events")
    events(shop, 1, 2)
    report = shop.replicate(EVENTS)
    assert states(report) == {"events": "unchanged"}
    assert "the table was made again" in report.tables[0].why


@pytest.mark.parametrize("where", ["database", "parquet", "delta"])
@pytest.mark.parametrize("between", ["full", "where"])
def test_a_record_is_void_once_another_definition_replaced_the_rows(
    shop: Shop, where: str, between: str
) -> None:
    """Or its next increment would add rows that the other one has copied."""
    target = target_of(shop, where)
    events(shop, 1, 3)
    shop.replicate(EVENTS, target)
    events(shop, 4, 6)
    other: dict[str, Any] = {} if between == "full" else {**EVENTS["events"], "where": "n < 9"}
    assert shop.replicate({"events": other}, target, full_refresh=True).rows == 6
    events(shop, 7, 8)
    report = shop.replicate(EVENTS, target)
    assert "has no record of this stream" in why(report)
    assert arrived(shop, where) == list(range(1, 7))
    assert shop.replicate(EVENTS, target, full_refresh=True).rows == 8
    events(shop, 9, 9)
    assert shop.replicate(EVENTS, target).rows == 1
    assert arrived(shop, where) == list(range(1, 10))


def test_a_table_of_a_thousand_columns(shop: Shop) -> None:
    """SQLite bounds the depth of an expression by 1 000."""
    columns = ", ".join(f"c{number} TEXT" for number in range(1_200))
    shop.run(f"CREATE TABLE wide ({columns}); INSERT INTO wide (c7, c1199) VALUES ('x', 'y')")
    report = shop.replicate({"wide": {}})
    assert report.exit_code == 0, why(report)
    assert shop.rows("SELECT c7, c1199 FROM wide") == [("x", "y")]


def test_numbers_do_not_fit_into_a_text_column_either(shop: Shop) -> None:
    """The target holds texts, and a column of numbers arrives: what data_type says holds for it, too."""

    def run(data_type: str) -> ReplicationReport:
        return shop.replicate({"users": {"contract": {"data_type": data_type}}})

    assert run("freeze").rows == 2
    shop.run("ALTER TABLE users DROP COLUMN phone; ALTER TABLE users ADD COLUMN phone INTEGER")
    shop.run("UPDATE users SET phone = 12")
    assert "contract.data_type is freeze" in why(run("freeze"))
    assert run("discard_value").rows == 2
    assert shop.rows("SELECT DISTINCT phone FROM users") == [("12",)]


@pytest.mark.parametrize("where", ["database", "parquet"])
def test_the_record_names_its_source(shop: Shop, where: str) -> None:
    """Two shops with tables of the same names, into one target: neither continues where the other one was."""
    events(shop, 1, 3)
    target = target_of(shop, where)
    assert shop.replicate(EVENTS, target).rows == 3
    first, shop.file = shop.file, shop.folder / "other.db"
    events(shop, 1, 9)
    assert "its source" in why(shop.replicate(EVENTS, target))
    shop.file = first
    events(shop, 4, 4)
    assert shop.replicate(EVENTS, target).rows == 1
    assert arrived(shop, where) == [1, 2, 3, 4]


def test_a_table_whose_every_try_lasts_long_is_parked_in_the_end(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a firewall drops what is sent: connecting lasts longer than `retryTimeout`, and copies nothing."""
    clock, tries = VirtualClock(), list[float]()

    def nothing_comes(_: TableRun) -> None:
        clock.advance(10)
        tries.append(clock.now())
        if len(tries) > 20:
            raise KeyboardInterrupt
        raise SourceError("timeout expired")

    monkeypatch.setattr(TableRun, "spec", nothing_comes)
    monkeypatch.setattr(TableRun, "passes", lambda *_, **__: True)
    monkeypatch.setattr(TableRun, "retry_seconds", 2.0)
    monkeypatch.setattr(_Run, "wait", lambda _, seconds: clock.advance(seconds))
    file = {
        "source": {"url": f"sqlite:{shop.file}"},
        "target": {"url": f"sqlite:{shop.folder}/dw.db"},
        "streams": {"users": {}},
    }
    with local_engine(served=False) as engine:
        report = replicate_on(
            load_replication(file),
            lambda spec, more: carry_out_here(engine, spec, more),
            engine.cancel,
            clock=clock,
        )
    assert states(report) == {"users": "parked"}
    assert 2 <= len(tries) <= 5


@pytest.mark.parametrize("url", ["mysql://127.0.0.1:1/shop", "postgresql://127.0.0.1:1/shop"])
@pytest.mark.parametrize("has_target", [True, False])
def test_a_target_that_stays_away_for_longer_than_one_copy_tries_is_tried_again(
    shop: Shop, url: str, has_target: bool
) -> None:
    """Not one that has never answered: its url may be wrong."""
    file = load_replication(
        {
            "source": {"url": f"sqlite:{shop.file}"},
            "target": {"url": url, "user": "x", "retryTimeout": "0"},
            "streams": {"users": {}},
        }
    )
    (copy,) = find_tables(file).copies
    writer = writer_of(copy)
    with pytest.raises(TargetError) as met:
        writer.stream_progress("users")
    run = TableRun(
        copy, TableOutcome("users", "", "full"), RunSettings(), ReplicationReport("run", utc_now())
    )
    assert run.passes(met.value, has_target=has_target) == has_target


def test_a_file_whose_rows_replace_those_of_another_says_so(shop: Shop) -> None:
    events(shop, 1, 3)
    assert [each.why for each in shop.replicate({"events": {}}).tables] == [""]
    assert [each.why for each in shop.replicate({"events": {}}).tables] == [""]
    shop.file = shop.folder / "other.db"
    events(shop, 1, 9)
    assert "another 'object'" in shop.replicate({"events": {}}).tables[0].why


@pytest.mark.parametrize("target", ["sqlite", "duckdb", "delta", "postgresql"])
def test_rows_that_get_the_highest_update_key_later_arrive(
    tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    """They are known by their keys; a later state of a row that was copied arrives, too."""
    shop = Shop(tmp_path)
    shop.run("CREATE TABLE e (id INTEGER PRIMARY KEY, day INTEGER NOT NULL, n INTEGER)")
    shop.run("INSERT INTO e VALUES (1, 20260101, 1), (2, 20260102, 1)")
    ends = {
        "sqlite": {"url": f"sqlite:{tmp_path}/dw.db"},
        "duckdb": {"url": f"duckdb:{tmp_path}/dw.duckdb"},
        "delta": {"path": f"{tmp_path}/lake", "writer": "delta"},
    }
    if target == "postgresql":
        server = request.getfixturevalue("postgres_server")
        server.psql("DROP TABLE IF EXISTS ties_e")
        ends[target] = server.login
    place = ends[target]
    streams = {
        "e": {"mode": "incremental", "update_key": "day", "primary_key": "id", "object": "ties_e"}
    }

    def run() -> list[tuple[Any, ...]]:
        report = shop.replicate(streams, place)
        assert report.exit_code == 0, why(report)
        assert report.tables[0].position == 20260102
        table = {"path": f"{place['path']}/ties_e"} if target == "delta" else {"dbtable": "ties_e"}
        name = {"reader": "delta"} if target == "delta" else {}
        login = {} if target == "delta" else place
        reader, _ = load_reader({**login, **table, **name})
        found = [
            row
            for split in reader.split(1)
            for each in reader.read(split)
            for row in each.to_pylist()
        ]
        return sorted(tuple(row.values()) for row in found)

    assert run() == [(1, 20260101, 1), (2, 20260102, 1)]
    shop.run("INSERT INTO e VALUES (3, 20260102, 1); UPDATE e SET n = 2 WHERE id = 2")
    assert run() == [(1, 20260101, 1), (2, 20260102, 2), (3, 20260102, 1)]
    shop.run("INSERT INTO e VALUES (4, 20260102, 1)")
    assert run() == [(1, 20260101, 1), (2, 20260102, 2), (3, 20260102, 1), (4, 20260102, 1)]
    assert len(run()) == 4


def test_the_last_update_key_is_not_written_again_by_a_run_that_was_overtaken(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_channel.local import run as local

    shop.run("CREATE TABLE e (id INTEGER PRIMARY KEY, day INTEGER NOT NULL)")
    shop.run("INSERT INTO e VALUES (1, 5), (2, 5)")
    streams = {"e": {"mode": "incremental", "update_key": "day", "primary_key": "id"}}
    assert shop.replicate(streams).exit_code == 0
    carry_out = local.carry_out_here

    def overtaken(*given: Any) -> Any:
        monkeypatch.setattr(local, "carry_out_here", carry_out)
        shop.run("UPDATE e SET day = 6 WHERE id = 2")
        assert shop.replicate(streams).exit_code == 0
        return carry_out(*given)

    monkeypatch.setattr(local, "carry_out_here", overtaken)
    report = shop.replicate(streams)
    assert "another run has published meanwhile" in why(report)
    assert shop.rows("SELECT id, day FROM e ORDER BY id") == [(1, 5), (2, 6)]


def test_a_shared_limit_that_does_not_answer_ends_a_run_and_parks_no_table(
    shop: Shop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, address = shop.folder / "token", f"127.0.0.1:{free_port()}"
    token.write_text("t" * 32)
    monkeypatch.setenv("SPARK_CHANNEL_SHARED_LIMIT_TOKEN_FILE", str(token))
    with pytest.raises(ServiceUnavailableError, match=f"'lost' has not answered for .*{address}"):
        shop.replicate({"users": {}, "audit_log": {}}, shared_limit=f"{address}/lost")
    assert "parked" not in caplog.text
    assert states(shop.replicate({"users": {}})) == {"users": "done"}
