"""What is made of the changes of one delivery before the target gets them."""

import itertools
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors import WriteContext, find_connector, load_reader
from spark_channel.connectors.base.contract import ColumnFact, SourceTable
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.lake.publish import LakePublisher
from spark_channel.errors import SchemaError, SourceError
from spark_channel.replication import ReplicationReport, TableOutcome, publish, renames
from spark_channel.replication import changes as changes_module
from spark_channel.replication.changes import Follower
from spark_channel.replication.config import StreamOptions, load_replication
from spark_channel.replication.deletes import kept_key, latest_time, net_changes, with_deletes
from spark_channel.replication.drift import FitTypes, LeaveOut
from spark_channel.replication.renames import changes_of
from spark_channel.replication.tables import TableCopy
from spark_channel.replication.tunnels import tunnel_name
from spark_channel.transform.transformer import prepare

T = datetime(2026, 1, 1, tzinfo=UTC)


def changes(*rows: tuple[str, int | None, str | None, int], key: str = "id") -> pa.Table:
    """Rows of `_op`, a key, a value, and the second of the commit."""
    does, keys, values, seconds = zip(*rows, strict=True)
    times = [T + timedelta(seconds=each, microseconds=1) for each in seconds]
    return pa.table(
        {
            key: pa.array(keys, pa.int64()),
            "s": pa.array(values, pa.string()),
            "_op": does,
            "_commit_ts": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


def seconds(value: datetime | None) -> int | None:
    return None if value is None else round((value - T).total_seconds())


def test_a_truncate_ends_the_versions_of_its_own_delivery() -> None:
    rows = changes(
        ("update", 1, "a", 10),
        ("insert", 2, "b", 11),
        ("truncate", None, None, 20),
        ("insert", 2, "c", 30),
    )
    made = with_deletes(rows, "scd2", ["id"], T).to_pylist()
    versions = [
        (row["id"], row["s"], seconds(row["_valid_from"]), seconds(row["_valid_to"]))
        for row in made
        if row["_op"] == "update"
    ]
    assert versions == [(1, "a", 10, 20), (2, "b", 11, 20), (2, "c", 30, None)]
    closes = [(r["id"], seconds(r["_valid_to"])) for r in made if r["_op"] == "close"]
    assert closes == [(1, 10), (2, 11)]
    assert [seconds(row["_valid_to"]) for row in made if row["_op"] == "close_all"] == [20]
    soft = with_deletes(rows, "soft", ["id"], T).to_pylist()
    assert [(row["id"], row["s"], seconds(row["_deleted_at"])) for row in soft] == [
        (None, None, 20),
        (1, "a", 20),
        (2, "c", None),
    ]


def test_existing_rows_behind_a_truncate_begin_after_it() -> None:
    rows = changes(("truncate", None, None, 20), ("read", 1, "a", 0))
    rows = rows.set_column(
        3, "_commit_ts", pa.array([rows["_commit_ts"][0], None], pa.timestamp("us", "UTC"))
    )
    *_, last = with_deletes(rows, "scd2", ["id"], T).to_pylist()
    assert (seconds(last["_valid_from"]), last["_valid_to"], last["_op"]) == (20, None, "update")


def test_a_key_is_not_a_column_in_another_case() -> None:
    rows = changes(("insert", 7, "a", 1), ("insert", 8, "b", 1), key="Id")
    rows = rows.add_column(0, "id", pa.array([1, 1]))
    assert with_deletes(rows, "soft", ["Id"], T)["Id"].to_pylist() == [7, 8]


def test_a_key_that_the_changes_lack_is_named() -> None:
    rows = changes(("insert", 7, "a", 1))
    with pytest.raises(SchemaError, match="no column 'number', which is in the table's key"):
        with_deletes(rows, "soft", ["number"], T)
    with pytest.raises(SchemaError, match="number"):
        net_changes(rows, ["number"])


@dataclass
class Catalog:
    """A source, of which only the facts of its columns are asked."""

    facts: dict[str, ColumnFact]

    def column_facts(self) -> dict[str, ColumnFact]:
        return self.facts


@pytest.mark.parametrize(
    ("known", "now", "arriving", "target", "found"),
    [
        # secret -> x -> y between two runs: the log has x, the catalog y
        ("id:1 secret:2", "id:1 y:2", "id x", "id secret", "secret"),
        # secret -> a, which was b's name before
        ("id:1 secret:2 a:3", "id:1 a:2 b:3", "id a b", "id secret a", "secret"),
        # no numbers, as in MySQL, or a tunnel that lost them
        ("", "id: x:", "id x", "id secret", "secret"),
        ("", "id:1 x:2", "id x", "id secret", "secret"),
        ("", "id: kept:", "id kept", "id secret", ("kept",)),
        # a new column beside one that is dropped by its mask
        ("id:1 dropped:2", "id:1 dropped:2 x:3", "id x", "id", ()),
        # dropped again before the run: the log still has it
        ("id:1 dropped:2", "id:1 dropped:2", "id x", "id", ("x",)),
        ("id:1 dropped:2", "id:1", "id x", "id", "dropped"),
    ],
)
def test_a_column_that_may_be_a_masked_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    known: str,
    now: str,
    arriving: str,
    target: str,
    found: str | tuple[str, ...],
) -> None:
    def numbers(text: str) -> dict[str, str]:
        return {name: number for name, _, number in (each.partition(":") for each in text.split())}

    facts = {name: ColumnFact(number, filled=False) for name, number in numbers(now).items()}
    monkeypatch.setattr(renames, "reader_of", lambda copy: Catalog(facts))
    masks = {"*.secret": "sha256", "*.dropped": "drop", "*.kept": "keep"}
    options = StreamOptions.model_validate({"columns": masks})
    copy = TableCopy("s.t", None, options, "t", {}, {})
    columns, there = arriving.split(), target.split()
    new, gone = set(columns) - set(there), set(there) - set(columns)

    def made() -> tuple[str, ...]:
        return changes_of(copy, numbers(known), columns, new, gone).filled

    if isinstance(found, tuple):
        assert made() == found
        return
    with pytest.raises(SchemaError, match=f"'{found}', which has mask"):
        made()


def test_a_table_that_was_parked_before_an_outage_is_not_parked_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(_copy: TableCopy) -> tuple[str, ...]:
        raise SourceError("the server is away")

    place = {"url": "postgresql://db/shop"}
    file = load_replication({"source": place, "target": place, "streams": {"s.t": {}}})
    given = {"reader": "postgresql", **place, "dbtable": "s.t"}
    copy = TableCopy("s.t", SourceTable("s", "t", "s.t"), StreamOptions(), "t", given, {})
    outcome = TableOutcome("s.t", "t", "full_then_changes", "parked", why="a lock", rows=3)
    follower = Follower(file, [copy], {"s.t": outcome}, ReplicationReport("run", T))
    monkeypatch.setattr(changes_module, "key_of", away)
    monkeypatch.setattr(publish, "is_away", lambda *_: True)
    with pytest.raises(SourceError, match="away"):
        follower.run({}, once=True)
    assert (outcome.state, outcome.why, outcome.rows) == ("not run", "", 3)


def test_a_row_that_is_gone_is_removed_by_a_key_in_another_case(tmp_path: Path) -> None:
    def write(rows: pa.Table, gone: pa.Table | None) -> None:
        given = {
            "writer": "delta",
            "path": str(tmp_path),
            "writeMode": "upsert",
            "keyColumns": "id",
        }
        writer, _ = find_connector(given, "writer").writer_with(given)
        assert isinstance(writer, LakePublisher)
        writer.gone = gone
        plan = writer.prepare(WriteContext(uuid.uuid4().hex, commit="job"), rows.schema)
        task = writer.open(plan, 0, 0)
        for batch in rows.to_batches():
            task.write(batch)
        writer.commit(plan, [task.close()])

    write(pa.table({"ID": pa.array([1, 2], pa.int64())}), None)
    write(pa.table({"id": pa.array([3], pa.int64())}), pa.table({"id": pa.array([1], pa.int32())}))
    reader, _ = load_reader({"reader": "delta", "path": str(tmp_path)})
    reader.schema()
    found = [row for split in reader.split(1) for batch in reader.read(split) for row in batch[0]]
    assert sorted(each.as_py() for each in found) == [2, 3]


def test_a_row_that_is_left_out_is_still_deleted() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"id": [1, 2, 3], "new": ["x", "y", None], "_op": ["insert", "delete", "insert"]}
    )

    def kept(step: Any) -> list[int]:
        made: list[int] = prepare([step], batch.schema).run(batch).batch["id"].to_pylist()
        return made

    assert kept(LeaveOut(("new",), drops_rows=True)) == [2, 3]
    assert kept(FitTypes((("new", pa.int32()),), drops_rows=True)) == [2, 3]


def test_a_tunnel_and_its_slot_do_not_depend_on_the_login() -> None:
    def name(login: str, more: str = "") -> str:
        file: dict[str, Any] = {"target": {"path": "dw.db"}, "streams": {"*": {}}}
        file["source"] = {"url": f"postgresql://{login}db/shop{more}"}
        return tunnel_name(load_replication(file))

    assert name("") == name("ann:planted@") == name("bob@") == name("", "?sslmode=require&user=x")
    assert name("", "?host=one") != name("", "?host=two")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_the_versions_of_a_key_follow_each_other_also_when_a_clock_is_set_back(
    tmp_path: Path, kind: str
) -> None:
    target = {
        "sqlite": {"url": f"sqlite:{tmp_path}/dw.db"},
        "duckdb": {"path": f"{tmp_path}/dw.duckdb", "reader": "duckdb"},
    }[kind]
    key = list(kept_key(["id"], "scd2"))

    def write(rows: pa.Table, mode: str) -> None:
        given = {**target, "dbtable": "t", "writeMode": mode, "keyColumns": key}
        given.pop("reader", None)
        writer, _ = find_connector({**given, "writer": kind}, "writer").writer_with(given)
        plan = writer.prepare(WriteContext(uuid.uuid4().hex, commit="job"), rows.schema)
        task = writer.open(plan, 0, 0)
        for batch in rows.combine_chunks().to_batches():
            task.write(batch)
        writer.commit(plan, [task.close()])

    deliveries = [
        changes(("read", 1, "a", 0), ("read", 2, "b", 0)),
        changes(("update", 1, "c", 10), ("truncate", None, None, 20), ("insert", 1, "d", 30)),
        changes(("truncate", None, None, 25), ("insert", 2, "e", 26)),
    ]
    made = [with_deletes(each, "scd2", ["id"], T) for each in deliveries]
    write(made[0].drop_columns(["_op"]).slice(0, 0), "upsert")
    for each in made:
        write(each, "apply")
    reader, _ = load_reader({**target, "dbtable": "t"})
    found = [
        row for each in reader.split(1) for batch in reader.read(each) for row in batch.to_pylist()
    ]
    assert sorted(
        (row["id"], row["s"], seconds(row["_valid_from"]), seconds(row["_valid_to"]))
        for row in found
    ) == [
        (1, "a", 0, 10),
        (1, "c", 10, 20),
        (1, "d", 30, 30),
        (2, "b", 0, 20),
        (2, "e", 26, None),
    ]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["insert", "DELETE", "update", "read"])))
)
def test_the_net_of_changes_is_what_they_leave(changed: list[tuple[int, str]]) -> None:
    rows = pa.table(
        {
            "id": pa.array([key for key, _ in changed], pa.int64()),
            "n": pa.array(range(len(changed)), pa.int64()),
            OPERATION: pa.array([said for _, said in changed], pa.string()),
        }
    )
    there: dict[int, int] = {}
    for number, (key, said) in enumerate(changed):
        there.pop(key, None)
        if said != "DELETE":
            there[key] = number
    live, gone = net_changes(rows, ["ID"])
    assert {each["id"]: each["n"] for each in live.to_pylist()} == there
    assert {each["ID"] for each in gone.to_pylist()} == {key for key, _ in changed} - there.keys()


@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["insert", "update", "delete", "truncate"]),
                st.integers(1, 2),
                st.integers(-3, 3),
            ),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_versions_never_overlap_whatever_the_clock_of_the_log_does(
    deliveries: list[list[tuple[str, int, int]]],
) -> None:
    """Each delivery is applied to a target as `writeMode=apply` does it."""
    versions: list[dict[str, Any]] = []
    after = None
    order = ["close", "close_all", "update"]
    for number, delivery in enumerate(deliveries):
        rows = changes(*((does, key, str(number), second) for does, key, second in delivery))
        made = with_deletes(rows, "scd2", ["id"], T, after=after)
        after = latest_time(made, after)
        for row in sorted(made.to_pylist(), key=lambda row: order.index(row["_op"])):
            if row["_op"] == "update":
                versions.append(row)
                continue
            for each in versions:
                if each["_valid_to"] is None and row["id"] in (None, each["id"]):
                    each["_valid_to"] = max(row["_valid_to"], each["_valid_from"])
    for key in (1, 2):
        own = [each for each in versions if each["id"] == key]
        begins = [each["_valid_from"] for each in own]
        assert begins == sorted(set(begins)), "versions begin in the order of the changes"
        for one, following in itertools.pairwise(own):
            assert one["_valid_to"] is not None
            assert one["_valid_to"] <= following["_valid_from"]
