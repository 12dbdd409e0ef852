"""Tables that change in the source in ways of which its log has no rows: one of them stops none of the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import spark_channel
from spark_channel.connectors import load_reader
from spark_channel.connectors.mysql.log.dump import OpenLog
from spark_channel.connectors.mysql.log.events import Event, Kind
from spark_channel.connectors.mysql.log.snapshot import BinlogWatermarks
from spark_channel.connectors.postgresql.log.watermarks import PgWatermarks
from spark_channel.errors import SourceError, SupersededError
from spark_channel.replication import ReplicationReport
from spark_channel.replication.changes import Follower
from spark_channel.replication.config import load_replication
from spark_channel.replication.plan import plan_replication
from spark_channel.replication.status import resume_tables, status_of
from spark_channel.replication.table_run import RunSettings
from spark_channel.replication.tables import is_away
from spark_channel.tunnel import Delivery, Tunnel
from tests.replication.test_changes import Followed, columns, followed

__all__ = ["followed"]

pytestmark = pytest.mark.timeout(120)

PLANTED = "INSERT INTO fol.a VALUES (1, 1, 'x'), (2, 2, 'y'); INSERT INTO fol.b VALUES (1)"


def is_postgres(followed: Followed) -> bool:
    return "publication" in followed.source


def resumed(followed: Followed) -> None:
    assert resume_tables(load_replication(followed.file), ["fol.a"]) == (["fol.a"], [])


def while_it_runs(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> ReplicationReport:
    """Follow the tables; `act` comes before the first delivery is processed, and the run may see it."""
    process, left = Follower._process, [act]

    def processed(follower: Follower, delivery: Delivery) -> None:
        if left:
            left.pop()()
        process(follower, delivery)

    with monkeypatch.context() as patched:
        patched.setattr(Follower, "_process", processed)
        report = spark_channel.replicate(None, followed.file, once=True)
    assert not left
    return report


def beside_a_row_of_b(
    followed: Followed,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[], object],
    *,
    is_running: bool,
) -> None:
    """`act` while a run follows the insert of a row into `b`, or before the insert, between two runs."""
    if is_running:
        followed.sql("INSERT INTO fol.b VALUES (2)")
        while_it_runs(followed, monkeypatch, act)
    else:
        act()
        followed.sql("INSERT INTO fol.b VALUES (2)")


def only_a_is_parked(report: ReplicationReport) -> str:
    assert [each.stream for each in report.parked] == ["fol.a"], report.tables
    return report.parked[0].why


@pytest.mark.parametrize("is_running", [True, False])
def test_a_renamed_key_parks_its_table_alone(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    followed.sql(PLANTED)
    followed.run()

    def rename() -> None:
        followed.sql("ALTER TABLE fol.a RENAME COLUMN id TO nr")
        followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z'); INSERT INTO fol.b VALUES (3)")

    beside_a_row_of_b(followed, monkeypatch, rename, is_running=is_running)
    why = only_a_is_parked(followed.run(3))
    assert "replicate resume FILE fol.a" in why
    if is_postgres(followed):
        assert 'RENAME COLUMN "id" TO "nr"' in why
    assert followed.rows("b", "id") == [(1,), (2,), (3,)]
    followed.sql("INSERT INTO fol.b VALUES (4)")
    only_a_is_parked(followed.run(3))
    assert followed.rows("b", "id") == [(1,), (2,), (3,), (4,)]
    if is_postgres(followed):
        followed.sql('ALTER TABLE fol_dw.t_a RENAME COLUMN "id" TO "nr"')
    else:
        followed.sql("ALTER TABLE fol.a RENAME COLUMN nr TO id")
    followed.sql("DELETE FROM fol.a WHERE n = 1")
    resumed(followed)
    followed.run()
    name = "nr" if is_postgres(followed) else "id"
    assert followed.rows("a", f"{name}, n") == [(2, 2), (3, 3)]
    followed.sql("INSERT INTO fol.a VALUES (5, 5, 'v')")
    followed.run()
    assert followed.rows("a", f"{name}, n") == [(2, 2), (3, 3), (5, 5)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_running", [True, False])
def test_a_table_that_leaves_the_publication_is_parked_alone(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    followed.sql(PLANTED)
    followed.run()

    def leave() -> None:
        followed.sql("ALTER PUBLICATION fol DROP TABLE fol.a; DELETE FROM fol.a WHERE id = 1")
        followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z'); INSERT INTO fol.b VALUES (3)")

    beside_a_row_of_b(followed, monkeypatch, leave, is_running=is_running)
    why = only_a_is_parked(followed.run(3))
    assert "ALTER PUBLICATION fol ADD TABLE" in why
    assert followed.rows("b", "id") == [(1,), (2,), (3,)]
    resumed(followed)  # too early: the publication still lacks it
    assert "ALTER PUBLICATION fol ADD TABLE fol.a" in only_a_is_parked(followed.run(3))
    assert len(followed.rows("a", "id")) == 2, "rows are kept until they can be read again"
    followed.sql("ALTER PUBLICATION fol ADD TABLE fol.a; INSERT INTO fol.b VALUES (4)")
    followed.run()
    followed.run()
    assert followed.rows("a", "id, n") == [(2, 2), (3, 3)]
    assert followed.rows("b", "id") == [(1,), (2,), (3,), (4,)]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_table_that_is_dropped_and_made_again_stops_no_other(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    followed.sql(PLANTED)
    followed.run()

    def again() -> None:
        followed.sql("DROP TABLE fol.a; CREATE TABLE fol.a (id INT PRIMARY KEY, n INT)")
        followed.sql("INSERT INTO fol.a VALUES (2, 20), (7, 70); INSERT INTO fol.b VALUES (3)")

    beside_a_row_of_b(followed, monkeypatch, again, is_running=is_running)
    if is_postgres(followed):
        why = only_a_is_parked(followed.run(3))
        assert "ALTER PUBLICATION fol ADD TABLE fol.a" in why
        followed.sql("ALTER PUBLICATION fol ADD TABLE fol.a")
    else:
        followed.run()
    assert followed.rows("b", "id") == [(1,), (2,), (3,)]
    followed.run()
    followed.run()
    assert followed.rows("a", "id, n") == [(2, 20), (7, 70)]


def test_a_table_that_is_dropped_stops_no_other(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql("INSERT INTO fol.b VALUES (2)")

    def drop() -> None:
        followed.sql("DROP TABLE fol.a; INSERT INTO fol.b VALUES (3)")

    while_it_runs(followed, monkeypatch, drop)
    for number in (4, 5):
        followed.sql(f"INSERT INTO fol.b VALUES ({number})")
        only_a_is_parked(followed.run(3))
    assert followed.rows("b", "id") == [(1,), (2,), (3,), (4,), (5,)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_tables_that_cannot_begin_do_not_hinder_those_that_can(followed: Followed) -> None:
    followed.sql("ALTER PUBLICATION fol DROP TABLE fol.a")
    followed.sql(PLANTED)
    why = only_a_is_parked(followed.run(3))
    assert "ALTER PUBLICATION fol ADD TABLE fol.a" in why
    assert followed.rows("b", "id") == [(1,)]
    followed.sql("INSERT INTO fol.b VALUES (2)")
    only_a_is_parked(followed.run(3))
    followed.sql("ALTER PUBLICATION fol ADD TABLE fol.a")
    followed.run()
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 1), (2, 2)]
    assert followed.rows("b", "id") == [(1,), (2,)]


def planned(followed: Followed) -> dict[str, str]:
    """What a run would do with each table."""
    plan = plan_replication(load_replication(followed.file), RunSettings(), parallelism=1)
    return {each.stream: each.does for each in plan.tables}


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_value_that_the_log_leaves_out_is_named_before_and_parks_its_table_at_once(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """By the default waits between tries, which take 25 s and more."""
    del followed.source["maxRetryInterval"]
    followed.sql("ALTER TABLE fol.a ALTER s TYPE text, ALTER s SET STORAGE EXTERNAL")
    before = planned(followed)
    followed.sql("INSERT INTO fol.a VALUES (1, 1, repeat('x', 9000)); INSERT INTO fol.b VALUES (1)")
    plan = planned(followed)
    assert "ALTER TABLE" not in before["fol.a"] + plan["fol.b"]
    assert "a large value of s" in plan["fol.a"]
    assert 'run ALTER TABLE "fol"."a" REPLICA IDENTITY FULL' in plan["fol.a"]
    followed.run()
    followed.sql("UPDATE fol.a SET n = 2; INSERT INTO fol.b VALUES (2)")
    caplog.clear()
    assert "REPLICA IDENTITY FULL" in only_a_is_parked(followed.run(3))
    assert followed.rows("b", "id") == [(1,), (2,)]
    assert "trying again" not in caplog.text
    followed.sql("ALTER TABLE fol.a REPLICA IDENTITY FULL")
    plan = planned(followed)
    assert "ALTER TABLE" not in plan["fol.a"]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_range_that_one_table_keeps_from_being_read_goes_on_without_it(
    followed: Followed,
) -> None:
    """An update without a value that is stored out of line, in a range that is assigned already."""
    followed.sql("ALTER TABLE fol.a ALTER s TYPE text, ALTER s SET STORAGE EXTERNAL")
    followed.sql("INSERT INTO fol.a VALUES (1, 1, repeat('x', 9000)); INSERT INTO fol.b VALUES (1)")
    followed.run()
    followed.sql("UPDATE fol.a SET n = 2; INSERT INTO fol.b VALUES (2)")
    for _ in range(2):
        assert "REPLICA IDENTITY FULL" in only_a_is_parked(followed.run(3))
        assert followed.rows("b", "id") == [(1,), (2,)]
    followed.sql("ALTER TABLE fol.a REPLICA IDENTITY FULL; UPDATE fol.a SET n = 3")
    resumed(followed)
    followed.run()
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 3)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("ALTER TABLE fol.a ALTER n TYPE int USING n * 100", [(1, 100, "x"), (2, 200, "y")]),
        (
            "ALTER TABLE fol.a ADD d int DEFAULT 7; ALTER TABLE fol.a ALTER d DROP DEFAULT",
            [(1, 1, "x", 7), (2, 2, "y", 7)],
        ),
        (
            "ALTER TABLE fol.a ADD d int DEFAULT random() * 0 + 7; ALTER TABLE fol.a ALTER d DROP DEFAULT",
            [(1, 1, "x", 7), (2, 2, "y", 7)],
        ),
        (
            "ALTER TABLE fol.a ALTER id TYPE int USING id + 10",
            [(11, 1, "x"), (12, 2, "y")],
        ),
    ],
)
def test_values_that_no_log_has_arrive(
    followed: Followed, statement: str, found: list[tuple[object, ...]]
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql(statement)
    followed.sql("INSERT INTO fol.a (id) VALUES (99)")  # a new column arrives with a row
    followed.run()
    followed.sql("DELETE FROM fol.a WHERE id = 99")
    followed.run()
    columns = "id, n, s" + (", d" if len(found[0]) > 3 else "")
    assert followed.rows("a", columns) == found


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_table_that_is_written_anew_while_it_is_followed_is_read_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_channel.replication.changes._LOOK_SECONDS", -1.0)
    followed.sql(PLANTED)
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z')")
    rewrite = "ALTER TABLE fol.a ALTER n TYPE int USING n * 100"
    while_it_runs(followed, monkeypatch, lambda: followed.sql(rewrite))
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 100), (2, 200), (3, 300)]
    for statement in ("VACUUM FULL fol.a", "ALTER TABLE fol.a ALTER n SET NOT NULL"):
        followed.sql(statement)
        assert followed.run().rows == 0, "no value has changed"


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "n"),
    [
        ("ALTER TABLE fol.a ALTER n TYPE int USING n * 100", 100),
        ("ALTER TABLE fol.a ADD d int DEFAULT random() * 0 + 7; INSERT INTO fol.a VALUES (4)", 1),
        ("DROP TABLE fol_dw.t_a", 1),
    ],
)
def test_rows_are_read_again_by_the_run_that_cannot_do_so_at_first(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, statement: str, n: int
) -> None:
    """The run has noted by then what showed it. It may follow for months without a restart."""
    monkeypatch.setattr("spark_channel.replication.changes._LOOK_SECONDS", -1.0)
    followed.sql(PLANTED)
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z')")
    failed: list[str] = []
    resnapshot = Tunnel.resnapshot

    def fails_once(tunnel: Tunnel, table: str) -> None:
        if not failed:
            failed.append(table)
            raise SourceError("the server closed the connection")
        resnapshot(tunnel, table)

    monkeypatch.setattr(Tunnel, "resnapshot", fails_once)
    while_it_runs(followed, monkeypatch, lambda: followed.sql(statement))
    assert failed
    states = {each.stream: each.state for each in status_of(load_replication(followed.file))}
    assert states["fol.a"] == "followed", "nothing is left to the next run"
    followed.run()
    found = followed.rows("a", "id, n")
    assert [each for each in found if each[0] != 4] == [
        (1, n),
        (2, 2 * n),
        (3, 3 * n if n > 1 else 3),
    ]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "keys"), [("bigint", [1, 2, 3]), ("int USING id + 10", [11, 12, 13])]
)
def test_a_key_that_is_written_anew_has_its_rows_read_again_as_by_the_next_run(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, kind: str, keys: list[int]
) -> None:
    monkeypatch.setattr("spark_channel.replication.changes._LOOK_SECONDS", -1.0)
    followed.more["contract"] = {"data_type": "evolve"}
    followed.sql(PLANTED)
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z'); INSERT INTO fol.b VALUES (2)")
    rewrite = f"ALTER TABLE fol.a ALTER id TYPE {kind}"
    report = while_it_runs(followed, monkeypatch, lambda: followed.sql(rewrite))
    assert not report.parked
    followed.run()
    assert followed.rows("a", "id, n") == [(key, n) for n, key in enumerate(keys, 1)]
    assert followed.rows("b", "id") == [(1,), (2,)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_key_that_was_added_with_a_default_is_the_same_after_the_table_is_vacuumed(
    followed: Followed,
) -> None:
    key = "ADD t int NOT NULL DEFAULT 1, DROP CONSTRAINT a_pkey, ADD PRIMARY KEY (t, id)"
    followed.sql(f"{PLANTED}; ALTER TABLE fol.a {key}")
    followed.run()
    followed.sql("VACUUM FULL fol.a")
    assert followed.run().rows == 0
    followed.sql("ALTER TABLE fol.a ALTER t TYPE int USING t + 1")
    followed.run()
    followed.run()
    assert followed.rows("a", "t, id") == [(2, 1), (2, 2)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize("policy", ["freeze", "evolve"])
def test_a_type_that_changes_with_all_values_goes_by_the_contract(
    followed: Followed, policy: str
) -> None:
    followed.more["contract"] = {"data_type": policy}
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a ALTER n TYPE bigint USING n * 5000000000")
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z'); INSERT INTO fol.b VALUES (2)")
    for _ in range(2):
        report = followed.run(3 if policy == "freeze" else 0)
    assert followed.rows("b", "id") == [(1,), (2,)]
    if policy == "freeze":
        assert "contract.data_type is freeze" in only_a_is_parked(report)
        assert followed.rows("a", "id, n") == [(1, 1), (2, 2)]
        return
    assert followed.rows("a", "id, n") == [(1, 5 * 10**9), (2, 10**10), (3, 3)]
    followed.sql("ALTER TABLE fol.a ALTER n TYPE text USING 'v' || n; INSERT INTO fol.b VALUES (3)")
    assert "'n'" in only_a_is_parked(followed.run(3))
    assert followed.rows("b", "id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("is_running", [True, False])
def test_tables_that_exchange_their_names_have_their_own_rows(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    """a becomes b, b becomes c, c becomes a."""
    sql, names = followed.sql, "abc"
    sql("DROP TABLE fol.b; CREATE TABLE fol.b (id INT PRIMARY KEY, n INT, s VARCHAR(20))")
    sql("CREATE TABLE fol.c (id INT PRIMARY KEY, n INT, s VARCHAR(20))")
    if is_postgres(followed):
        sql("ALTER PUBLICATION fol SET TABLE fol.a, fol.b, fol.c")
    followed.streams["fol.c"] = {}
    for number, name in enumerate(names):
        sql(f"INSERT INTO fol.{name} VALUES ({number}, {number}, '{name}'), (9, {number}, NULL)")
    followed.run()

    def rotate() -> None:
        pairs = [("c", "spare"), ("b", "c"), ("a", "b"), ("spare", "a")]
        sql("; ".join(f"ALTER TABLE fol.{old} RENAME TO {new}" for old, new in pairs))
        sql("INSERT INTO fol.a VALUES (100, 100, 'was c')")

    if is_running:
        sql("INSERT INTO fol.c VALUES (50, 50, 'c')")
        while_it_runs(followed, monkeypatch, rotate)
    else:
        rotate()
    spark_channel.replicate(None, followed.file, once=True)
    parked = spark_channel.replicate(None, followed.file, once=True).parked
    assert is_running or not (parked and is_postgres(followed))
    if parked:
        resume_tables(load_replication(followed.file), [each.stream for each in parked])
        followed.run()
        followed.run()
    more = [(50, 50, "c")] if is_running else []
    wanted = {
        "a": [(2, 2, "c"), (9, 2, None), *more, (100, 100, "was c")],
        "b": [(0, 0, "a"), (9, 0, None)],
        "c": [(1, 1, "b"), (9, 1, None)],
    }
    assert {name: followed.rows(name, "id, n, s") for name in names} == wanted


def test_a_file_that_was_renamed_may_lack_a_table_that_was_dropped(
    followed: Followed, tmp_path: Path
) -> None:
    followed.sql(PLANTED)

    def replicate(name: str) -> ReplicationReport:
        (tmp_path / name).write_text(yaml.safe_dump({**followed.file, "streams": {"fol.*": {}}}))
        return spark_channel.replicate(None, tmp_path / name, once=True)

    assert replicate("old.yml").exit_code == 0
    followed.sql("DROP TABLE fol.a; INSERT INTO fol.b VALUES (2)")
    report = replicate("new.yml")
    assert report.exit_code == 0, report.parked
    assert followed.rows("b", "id") == [(1,), (2,)]


def test_a_run_that_another_one_has_joined_with_more_tables_loses_no_row_of_them(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run has the tunnel's channel, and does not know the table that the second one adds."""
    followed.sql(PLANTED)
    second = followed.streams.pop("fol.b")
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z')")

    def join() -> None:
        followed.streams["fol.b"] = second
        with monkeypatch.context() as patched:
            patched.setattr(Tunnel, "consume", lambda *_, **__: None)
            spark_channel.replicate(None, followed.file, once=True)

    while_it_runs(followed, monkeypatch, join)
    followed.sql("INSERT INTO fol.b VALUES (2)")
    followed.run()
    followed.run()
    assert followed.rows("b", "id") == [(1,), (2,)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_rename_that_another_run_makes_first_parks_nothing(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a RENAME n TO m; INSERT INTO fol.a VALUES (3, 3, 'z')")
    look, left = Follower._column_changes, [1]

    def overtaken(*given: Any) -> Any:
        if left and left.pop():
            followed.sql("ALTER TABLE fol_dw.t_a RENAME n TO m")
        return look(*given)

    monkeypatch.setattr(Follower, "_column_changes", overtaken)
    followed.run()
    assert not left
    assert followed.rows("a", "id, m") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_rename_whose_claim_is_lost_is_tried_again(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a RENAME n TO m; INSERT INTO fol.a VALUES (3, 3, 'z')")
    publish, left = Follower._publish, [1]

    def overtaken(follower: Follower, copy: Any, given: Any, *more: Any) -> int:
        if "postSql" in given and left and left.pop():
            raise SupersededError("a later run of the same write took over")
        return publish(follower, copy, given, *more)

    monkeypatch.setattr(Follower, "_publish", overtaken)
    followed.run()
    assert not left
    assert columns(followed, "a") == ["id", "m", "s"]
    assert followed.rows("a", "id, m") == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_new_column_with_values_arrives_before_its_first_change(followed: Followed) -> None:
    """And its rows are read once for it, also where the target has such a column."""
    followed.sql(PLANTED)
    followed.run()
    followed.sql("ALTER TABLE fol.a ADD d int DEFAULT 7; ALTER TABLE fol_dw.t_b ADD e int")
    followed.sql("ALTER TABLE fol.b ADD e int DEFAULT 8")
    followed.run()
    assert followed.rows("a", "id, d") == [(1, 7), (2, 7)]
    assert followed.rows("b", "id, e") == [(1, 8)]
    assert followed.run().rows == 0


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
def test_a_source_without_a_connection_left_sets_no_table_aside(followed: Followed) -> None:
    """Its rows would all be read again by the next run."""
    followed.sql("CREATE ROLE fol_full LOGIN PASSWORD 'full' CONNECTION LIMIT 0")
    try:
        login = {"url": followed.source["url"], "user": "fol_full", "password": "full"}
        reader, _ = load_reader({"reader": "postgresql", **login, "dbtable": "fol.a"})
        with pytest.raises(SourceError, match="too many connections") as raised:
            reader.schema()
        assert is_away(reader, raised.value)
    finally:
        followed.sql("DROP ROLE fol_full")


@pytest.mark.parametrize("followed", ["postgresql"], indirect=True)
@pytest.mark.parametrize("is_joined", [False, True])
def test_the_only_table_whose_range_cannot_be_read_goes_on_after_it_is_resumed(
    followed: Followed, is_joined: bool
) -> None:
    """Also when another table has joined the tunnel meanwhile, which continues without it."""
    second = followed.streams.pop("fol.b")
    followed.sql("ALTER TABLE fol.a ALTER s TYPE text, ALTER s SET STORAGE EXTERNAL")
    followed.sql("INSERT INTO fol.a VALUES (1, 1, repeat('x', 9000))")
    followed.run()
    followed.sql("UPDATE fol.a SET n = 2")
    for _ in range(2):
        report = followed.run(3)
        why = only_a_is_parked(report)
        assert "REPLICA IDENTITY FULL. Its changes are not written until" in why
        (note,) = report.notes
        assert "keeps its log for replication slot 'fol'" in note
        assert "replicate resume FILE '*'" in note
    if is_joined:
        followed.sql("INSERT INTO fol.b VALUES (1)")
        followed.streams["fol.b"] = second
        for _ in range(2):
            assert "REPLICA IDENTITY FULL" in only_a_is_parked(followed.run(3))
        assert followed.rows("b", "id") == [(1,)]
    followed.sql("ALTER TABLE fol.a REPLICA IDENTITY FULL; UPDATE fol.a SET n = 3")
    resumed(followed)
    followed.run()
    followed.run()
    assert followed.rows("a", "id, n") == [(1, 3)]


@pytest.mark.parametrize(
    ("followed", "state", "said"),
    [
        ("postgresql", "53100", "could not extend file"),
        ("postgresql", "57014", "canceling statement due to user request"),
        ("mariadb", "1021", "Disk full"),
    ],
    indirect=["followed"],
)
def test_what_a_source_lacks_for_a_moment_parks_no_table(
    followed: Followed, monkeypatch: pytest.MonkeyPatch, state: str, said: str
) -> None:
    """It fails more often than a range is tried that cannot be read."""
    statement = f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {state}, MESSAGE_TEXT = '{said}'"
    log_class: Any = BinlogWatermarks
    if is_postgres(followed):
        statement = f"DO $$ BEGIN RAISE EXCEPTION '{said}' USING ERRCODE = '{state}'; END $$"
        log_class = PgWatermarks
    fails, chunk = [statement] * 6, log_class._chunk

    def failing(log: Any, session: Any, *rest: Any) -> Any:
        if fails:
            session.execute(fails.pop())
        return chunk(log, session, *rest)

    followed.sql(PLANTED)
    monkeypatch.setattr(log_class, "_chunk", failing)
    followed.run()
    assert not fails
    assert followed.rows("a", "id, n") == [(1, 1), (2, 2)]


@pytest.mark.parametrize("followed", ["mariadb"], indirect=True)
def test_existing_rows_that_cannot_be_read_hold_up_no_other_table(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range that was assigned has nothing else, and is empty when their table has left."""
    chunk = BinlogWatermarks._chunk

    def failing(log: Any, session: Any, *rest: Any) -> Any:
        if log._reader.options.dbtable.endswith("`a`"):
            session.execute("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1969, MESSAGE_TEXT = 'slow'")
        return chunk(log, session, *rest)

    followed.sql(PLANTED)
    with monkeypatch.context() as patched:
        patched.setattr(BinlogWatermarks, "_chunk", failing)
        assert "1969" in only_a_is_parked(followed.run(3))
    assert followed.rows("b", "id") == [(1,)]


@pytest.mark.parametrize("followed", ["mariadb"], indirect=True)
def test_an_error_of_the_log_itself_parks_no_table_that_was_read_last(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.sql(PLANTED)
    followed.run()
    followed.sql("INSERT INTO fol.a VALUES (3, 3, 'z'); INSERT INTO fol.b VALUES (2)")

    following, cut = OpenLog.__next__, set()

    def broken(log: OpenLog) -> Event:
        if id(log) in cut:
            raise SourceError("the server has no later part of its log")
        event = following(log)
        if event.kind == Kind.TABLE_MAP:
            cut.add(id(log))
        return event

    with monkeypatch.context() as patched:
        patched.setattr(OpenLog, "__next__", broken)
        report = spark_channel.replicate(None, followed.file, once=True)
    assert {each.why for each in report.parked} == {"the server has no later part of its log"}
    followed.run()
    assert followed.rows("a", "id") == [(1,), (2,), (3,)]
