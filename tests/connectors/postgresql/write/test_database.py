"""What a write does to the table, in each mode and with each option."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors.postgresql.write import staged_rows
from spark_channel.errors import (
    BatchRefusedError,
    CommitError,
    OptionError,
    SchemaError,
    TargetError,
)
from spark_channel.options import CommitMode
from tests.connectors.postgresql.pg import Pg
from tests.connectors.sql.odd_names import hold_to_names
from tests.connectors.sql.one_database import run_task

BOTH = pytest.mark.parametrize("commit", ["job", "task"])


def _rows(*ids: int, v: str = "new") -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "v": pa.array([v] * len(ids), pa.string())})


def _keyed(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text, w int DEFAULT 7); INSERT INTO t VALUES (1, 'old'), (2, 'old')"
    )


def test_defaults_of_commit(pg: Pg) -> None:
    schema = _rows(1).schema
    assert pg.writer("t").prepare(pg.context(), schema).commit == "job"
    _keyed(pg)
    assert pg.writer("t").prepare(pg.context(), schema).commit == "job"
    assert pg.writer("t").prepare(pg.context(overwrite=True), schema).commit == "job"
    upsert = pg.writer("t", writeMode="upsert", keyColumns="id")
    assert upsert.prepare(pg.context(), schema).commit == "job"


@BOTH
def test_append_matches_columns_by_name(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    rows = pa.table({"V": ["x"], "id": pa.array([3], pa.int32())})
    pg.write(rows, commit=commit)
    assert pg.psql("SELECT * FROM t ORDER BY id") == "1|old|7\n2|old|7\n3|x|7"


@BOTH
def test_overwrite_keeps_the_table_its_indexes_views_and_grants(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    pg.psql(
        "CREATE INDEX extra ON t (v); CREATE VIEW seen AS SELECT id FROM t; GRANT SELECT ON t TO PUBLIC"
    )
    oid = pg.psql("SELECT 't'::regclass::oid")
    pg.write(_rows(5, 6), _rows(7), overwrite=True, commit=commit)
    assert pg.psql("SELECT id FROM seen ORDER BY id") == "5\n6\n7"
    assert pg.psql("SELECT 't'::regclass::oid") == oid
    assert pg.psql("SELECT count(*) FROM pg_indexes WHERE indexname = 'extra'") == "1"
    assert "=r/" in pg.psql("SELECT relacl FROM pg_class WHERE oid = 't'::regclass")


@BOTH
def test_overwrite_can_make_the_table_anew(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    pg.write(pa.table({"other": [1.5]}), overwrite=True, truncate="false", commit=commit)
    assert pg.psql("SELECT other FROM t") == "1.5"
    assert pg.staged() == []


def test_readers_see_all_or_nothing(pg: Pg) -> None:
    _keyed(pg)
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit="job", overwrite=True), _rows(1).schema)
    receipts = [run_task(writer, plan, 0, _rows(8)), run_task(writer, plan, 1, _rows(9))]
    assert pg.psql("SELECT count(*) FROM t WHERE v = 'old'") == "2"
    writer.commit(plan, receipts)
    assert pg.psql("SELECT id FROM t ORDER BY id") == "8\n9"


def test_overwrite_may_cascade(pg: Pg) -> None:
    _keyed(pg)
    pg.psql("CREATE TABLE child (id bigint REFERENCES t); INSERT INTO child VALUES (1)")
    with pytest.raises(CommitError, match="Nothing of this job is in table"):
        pg.write(_rows(5), overwrite=True)
    pg.write(_rows(5), overwrite=True, cascadeTruncate="true")
    assert pg.psql("SELECT count(*) FROM child") == "0"


@BOTH
def test_a_table_is_created_with_types_options_comment_and_key(pg: Pg, commit: CommitMode) -> None:
    pg.write(
        _rows(1, 2),
        commit=commit,
        createTableColumnTypes="v VARCHAR(10)",
        createTableOptions="WITH (fillfactor=70)",
        tableComment="it's ours",
        writeMode="upsert",
        keyColumns="id",
    )
    assert (
        pg.psql(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 't'::regclass AND attname = 'v'"
        )
        == "character varying(10)"
    )
    assert (
        pg.psql(
            "SELECT reloptions, obj_description(oid), relpersistence FROM pg_class "
            "WHERE oid = 't'::regclass"
        )
        == "{fillfactor=70}|it's ours|p"
    )
    assert (
        pg.psql("SELECT count(*) FROM pg_index WHERE indrelid = 't'::regclass AND indisprimary")
        == "1"
    )
    pg.write(_rows(2, 3, v="again"), writeMode="upsert", keyColumns="id", commit=commit)
    assert pg.psql("SELECT * FROM t ORDER BY id") == "1|new\n2|again\n3|again"


def test_create_table_false_and_bad_options_are_told(pg: Pg) -> None:
    schema = _rows(1).schema
    with pytest.raises(TargetError, match="createTable"):
        pg.writer("t", createTable="false").prepare(pg.context(), schema)
    for text in ("; DROP TABLE x", "AS SELECT 1", "WITH (a=1); DROP TABLE x"):
        with pytest.raises(OptionError, match="createTableOptions"):
            pg.writer("t", createTableOptions=text).prepare(pg.context(), schema)
    with pytest.raises(OptionError, match="schema 'nowhere' does not exist"):
        pg.writer("nowhere.t").prepare(pg.context(), schema)


@BOTH
def test_upsert_and_skip_existing(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    pg.write(_rows(2, 3), writeMode="upsert", keyColumns="id", commit=commit)
    assert pg.psql("SELECT id, v FROM t ORDER BY id") == "1|old\n2|new\n3|new"
    pg.write(_rows(1, 4, v="skip"), writeMode="skipExisting", keyColumns="ID", commit=commit)
    assert pg.psql("SELECT id, v FROM t ORDER BY id") == "1|old\n2|new\n3|new\n4|skip"


@BOTH
def test_the_key_is_the_tables_own_when_none_is_named(pg: Pg, commit: CommitMode) -> None:
    pg.psql(
        "CREATE TABLE t (name text NOT NULL UNIQUE, a int DEFAULT 1, b int, PRIMARY KEY (b, a))"
    )
    table = pa.table(
        {"B": pa.array([1, 2], pa.int32()), "a": pa.array([1, 1], pa.int32()), "name": ["x", "y"]}
    )
    pg.write(table, writeMode="upsert", commit=commit)
    changed = table.slice(1).set_column(2, "name", pa.array(["z"]))
    pg.write(changed, writeMode="upsert", commit=commit)
    assert pg.psql("SELECT b, a, name FROM t ORDER BY b") == "1|1|x\n2|1|z"
    pg.write(table.slice(1), writeMode="skipExisting", commit=commit)
    pg.write(
        table.append_column("_op", pa.array(["delete", "update"])), writeMode="apply", commit=commit
    )
    assert pg.psql("SELECT b, a, name FROM t") == "2|1|y"
    with pytest.raises(
        OptionError, match=r"the primary key of table .* names 'a', which the rows do not"
    ):
        pg.write(table.drop_columns(["a"]), writeMode="upsert")
    pg.psql("CREATE TABLE keyless (name text NOT NULL UNIQUE)")
    with pytest.raises(OptionError, match=r"needs 'keyColumns', since table .* has no primary key"):
        pg.write(table.select(["name"]), writeMode="upsert", dbtable="keyless")
    with pytest.raises(OptionError, match=r"needs 'keyColumns', since table .* is to be made"):
        pg.write(table, writeMode="upsert", dbtable="made", commit=commit)


@BOTH
@pytest.mark.parametrize("mode", ["upsert", "skipExisting"])
@pytest.mark.parametrize("batch_size", [1, 100])
def test_two_rows_of_one_key_are_an_error(
    pg: Pg, commit: CommitMode, mode: str, batch_size: int
) -> None:
    _keyed(pg)
    with pytest.raises(TargetError, match=r"key|Key"):
        pg.write(
            _rows(5, 6, 5), writeMode=mode, keyColumns="id", commit=commit, batchSize=batch_size
        )
    assert pg.psql("SELECT count(*) FROM t") == "2"


@BOTH
def test_null_keys_and_keys_that_are_not_unique_are_refused(pg: Pg, commit: CommitMode) -> None:
    pg.psql("CREATE TABLE t (id bigint UNIQUE, v text)")
    rows = pa.table({"id": pa.array([None], pa.int64()), "v": ["x"]})
    with pytest.raises(TargetError, match="NULL in its key"):
        pg.write(rows, writeMode="upsert", keyColumns="id", commit=commit)
    with pytest.raises(TargetError, match="unique index"):
        pg.write(_rows(1), writeMode="upsert", keyColumns="v", commit=commit)


@BOTH
@pytest.mark.parametrize("batch_size", [2, 100])
def test_apply_takes_the_last_change_of_each_key(
    pg: Pg, commit: CommitMode, batch_size: int
) -> None:
    _keyed(pg)
    changes = [
        ("update", 1, "a"),
        ("delete", 2, None),
        ("insert", 3, "b"),
        ("delete", 3, None),
        ("insert", 2, "c"),
        ("u", 1, "d"),
        ("insert", 4, "e"),
    ]
    rows = pa.table(
        {
            "_op": [change[0] for change in changes],
            "id": pa.array([change[1] for change in changes], pa.int64()),
            "v": pa.array([change[2] for change in changes], pa.string()),
        }
    )
    pg.write(rows, writeMode="apply", keyColumns="id", commit=commit, batchSize=batch_size)
    assert pg.psql("SELECT id, v FROM t ORDER BY id") == "1|d\n2|c\n4|e"
    with pytest.raises(TargetError, match="'merge'"):
        pg.write(
            rows.set_column(0, "_op", pa.array(["merge"] * 7)),
            writeMode="apply",
            keyColumns="id",
            commit=commit,
        )
    with pytest.raises(SchemaError, match="_op"):
        pg.write(rows.drop_columns(["_op"]), writeMode="apply", keyColumns="id", commit=commit)


def test_apply_truncates(pg: Pg) -> None:
    """Rows before it in the task go with the target's rows; later ones stay."""
    _keyed(pg)
    rows = pa.table(
        {
            "_op": ["insert", "truncate", "insert", "TRUNCATE", "insert", "update"],
            "id": pa.array([5, None, 6, None, 7, 7], pa.int64()),
            "v": ["a", None, "b", None, "c", "d"],
        }
    )
    apply: dict[str, Any] = {"writeMode": "apply", "keyColumns": "id"}
    pg.write(rows, rows.slice(0, 0), commit="job", batchSize=2, **apply)
    assert pg.psql("SELECT id, v FROM t") == "7|d"
    with pytest.raises(
        TargetError, match=r"'truncate' in _op, and 2 tasks write to .* one task has all changes"
    ):
        pg.write(rows, rows.slice(4), commit="job", **apply)
    with pytest.raises(
        TargetError, match=r"'truncate' in _op, and tasks that commit by themselves write"
    ):
        pg.write(rows, commit="task", **apply)
    assert pg.psql("SELECT id, v FROM t") == "7|d"


@BOTH
def test_scripts_run_in_order(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    pg.psql("CREATE TABLE seen (what text, n int)")
    pg.write(
        _rows(5),
        commit=commit,
        preSql="INSERT INTO seen SELECT 'pre;', count(*) FROM t; DELETE FROM t WHERE id = 1",
        postSql='["INSERT INTO seen SELECT $$post;$$, count(*) FROM t"]',
    )
    assert pg.psql("SELECT * FROM seen ORDER BY n DESC") in ("pre;|2\npost;|2", "post;|2\npre;|2")
    with pytest.raises(OptionError, match="COMMIT"):
        pg.write(_rows(6), preSql="COMMIT", commit=commit)


@BOTH
@pytest.mark.parametrize("option", ["preSql", "postSql"])
def test_scripts_do_not_end_the_transaction(pg: Pg, commit: CommitMode, option: str) -> None:
    def script(text: str) -> dict[str, Any]:
        return {option: text}

    _keyed(pg)
    before = pg.psql("SELECT count(*) FROM t")
    pg.psql("CREATE PROCEDURE commits() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$")
    for statement in ("PREPARE TRANSACTION 'x'", "-- x\n/* y */ prepare /* a */ transaction $$x$$"):
        with pytest.raises(OptionError, match="PREPARE TRANSACTION"):
            pg.write(_rows(6), commit=commit, **script(statement))
    for statement in ("CALL commits()", "DO 'BEGIN COMMIT; END'"):
        with pytest.raises(TargetError, match="transaction"):
            pg.write(_rows(6), commit="job", **script(statement))
        assert pg.psql("SELECT count(*) FROM t") == before
    pg.write(_rows(6), commit=commit, **script("PREPARE p AS SELECT 1; EXECUTE p"))


@BOTH
def test_statements_of_a_session_run_where_rows_are_written(pg: Pg, commit: CommitMode) -> None:
    """What they set of the session's own style does not change a value."""
    pg.psql("CREATE TABLE t (id bigint, v text, tenant text DEFAULT current_setting('app.tenant'))")
    session = '["SET app.tenant = 7; SET DateStyle = SQL", "SET TimeZone = $$Asia/Tokyo$$"]'
    pg.write(_rows(5, 6), commit=commit, sessionInitStatement=session)
    assert pg.psql("SELECT DISTINCT tenant, count(*) FROM t GROUP BY 1") == "7|2"
    with pytest.raises(OptionError, match="may not begin a transaction"):
        pg.write(_rows(6), commit=commit, sessionInitStatement="BEGIN")


def test_a_failing_post_sql_rolls_everything_back(pg: Pg) -> None:
    _keyed(pg)
    with pytest.raises(CommitError, match="Nothing of this job is in table"):
        pg.write(_rows(5), commit="job", overwrite=True, postSql="SELECT 1 / 0")
    assert pg.psql("SELECT count(*) FROM t") == "2"
    assert pg.staged() == []


@BOTH
def test_a_published_pair_is_a_no_op(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    pg.write(_rows(5), commit=commit, txn=("app", 1))
    plan = pg.write(_rows(6), commit=commit, txn=("app", 1))
    assert plan.published_at is not None
    assert pg.psql("SELECT count(*) FROM t") == "3"
    pg.write(_rows(6), commit=commit, txn=("app", 2))
    assert pg.psql("SELECT count(*) FROM t") == "4"


def test_a_partially_committed_version_is_refused_for_another_job_and_continued_by_its_own(
    pg: Pg,
) -> None:
    _keyed(pg)
    writer = pg.writer("t", preSql="UPDATE t SET w = w + 1")
    context = pg.context(job="nightly", commit="task", txn=("app", 1))
    plan = writer.prepare(context, _rows(1).schema)
    run_task(writer, plan, 0, _rows(5))
    writer.abort(plan, None)
    with pytest.raises(
        TargetError, match=r"partially committed.*'nightly' committed 1 tasks with 1 rows"
    ):
        writer.prepare(pg.context(commit="task", txn=("app", 1)), _rows(1).schema)
    again = writer.prepare(context, _rows(1).schema)
    receipts = [
        run_task(writer, again, 0, _rows(5), attempt=10),
        run_task(writer, again, 1, _rows(6), attempt=11),
    ]
    assert receipts[0].attempt == 0  # the first attempt's, by the ledger
    writer.commit(again, receipts)
    assert pg.psql("SELECT id, w FROM t ORDER BY id") == "1|8\n2|8\n5|7\n6|7"


def test_identity_defaults_and_generated_columns(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v text NOT NULL, "
        "twice text GENERATED ALWAYS AS (v || v) STORED)"
    )
    pg.write(pa.table({"v": ["a"]}), commit="task")
    for commit in ("job", "task"):
        pg.write(_rows(70 if commit == "job" else 71), commit=commit)
    assert pg.psql("SELECT * FROM t ORDER BY id") == "1|a|aa\n70|new|newnew\n71|new|newnew"
    with pytest.raises(SchemaError, match=r"twice.*generated"):
        pg.write(pa.table({"v": ["a"], "twice": ["b"]}))
    with pytest.raises(SchemaError, match="needs column 'v'"):
        pg.write(pa.table({"id": pa.array([1], pa.int64())}))
    with pytest.raises(SchemaError, match="'other' is not in table"):
        pg.write(pa.table({"v": ["a"], "other": [1]}))


def test_a_view_is_no_target(pg: Pg) -> None:
    pg.psql("CREATE VIEW v AS SELECT 1 AS id")
    with pytest.raises(TargetError, match="COPY cannot write to"):
        pg.write(_rows(1), dbtable="v")


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_table_that_is_altered_behind_the_look_at_it_is_refused(
    pg: Pg, overwrite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an ALTER for which the statement that brings the rows waits: the server would round values."""
    pg.psql("CREATE TABLE t (id bigint, n numeric(20, 6))")
    kind = pa.decimal128(20, 6)
    rows = pa.table({"id": pa.array([1], pa.int64()), "n": pa.array([Decimal("1.26")], kind)})
    writer = pg.writer("t", truncate=True)
    plan = writer.prepare(pg.context(commit="job", overwrite=overwrite), rows.schema)
    receipt = run_task(writer, plan, 0, rows)
    check = staged_rows.is_there

    def is_there(*given: Any, **more: Any) -> bool:
        found = check(*given, **more) if not overwrite else True
        pg.psql("ALTER TABLE t ALTER n TYPE numeric(20, 1)")
        return found

    monkeypatch.setattr(staged_rows, "is_there", is_there)
    with pytest.raises(CommitError, match="was altered while its rows were written"):
        writer.commit(plan, [receipt])
    monkeypatch.undo()
    writer.abort(plan, None)
    assert pg.psql("SELECT count(*) FROM t") == "0"
    assert pg.staged() == []


@BOTH
def test_a_table_that_changes_meanwhile_is_refused(pg: Pg, commit: CommitMode) -> None:
    _keyed(pg)
    writer = pg.writer("t")
    plan = writer.prepare(pg.context(commit=commit), _rows(1).schema)
    if commit == "job":
        receipt = run_task(writer, plan, 0, _rows(5))
        pg.psql("ALTER TABLE t ADD COLUMN late int")
        with pytest.raises(CommitError, match="was altered"):
            writer.commit(plan, [receipt])
    else:
        pg.psql("ALTER TABLE t DROP COLUMN v")
        with pytest.raises(TargetError, match=r"column 'v' was 'text' when .* is not there now"):
            run_task(writer, plan, 0, _rows(5))
    writer.abort(plan, None)
    assert pg.staged() == []


def test_partitioned_targets(pg: Pg) -> None:
    pg.psql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)"
    )
    for commit, number in (("job", 1), ("task", 2)):
        pg.write(_rows(number), commit=commit)  # type: ignore[arg-type] # one of the two texts
    assert pg.psql("SELECT count(*) FROM t") == "2"
    with pytest.raises(TargetError, match="no partition"):
        pg.write(_rows(99), commit="task")


@BOTH
def test_a_refused_row_names_the_constraint(pg: Pg, commit: CommitMode) -> None:
    pg.psql("CREATE TABLE t (id bigint CONSTRAINT small CHECK (id < 10), v text)")
    with pytest.raises(TargetError, match="small"):
        pg.write(_rows(1, 99), commit=commit)
    assert pg.psql("SELECT count(*) FROM t") == "0"


@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_a_tolerant_writer_refuses_a_batch_and_goes_on(pg: Pg, mode: str) -> None:
    deferred = "DEFERRABLE INITIALLY DEFERRED" if mode == "insert" else ""
    pg.psql(f"CREATE TABLE t (id bigint PRIMARY KEY {deferred}, v varchar(3))")
    options: dict[str, Any] = (
        {} if mode == "insert" else {"writeMode": "upsert", "keyColumns": "id"}
    )
    writer = pg.writer("t", maxDirtyRows="10", **options)
    plan = writer.prepare(pg.context(commit="task"), _rows(1).schema)
    task = writer.open(plan, 0, 0)
    task.tolerant = True
    task.write(_rows(1, 2).to_batches()[0])
    for bad, reason in ((_rows(3, v="long"), "longer"), (_rows(4, v="a\0"), "U\\+0000")):
        with pytest.raises(BatchRefusedError, match=reason):
            task.write(bad.to_batches()[0])
    if mode == "insert":
        with pytest.raises(BatchRefusedError, match="duplicate key"):
            task.write(_rows(5, 2).to_batches()[0])
    else:
        with pytest.raises(BatchRefusedError, match="NULL in its key"):
            task.write(pa.record_batch({"id": pa.array([None], pa.int64()), "v": pa.array(["x"])}))
    task.write(_rows(6).to_batches()[0])
    writer.commit(plan, [task.close()])
    assert pg.psql("SELECT id FROM t ORDER BY id") == "1\n2\n6"


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_schema_whose_name_holds_a_mark(pg: Pg, commit: CommitMode) -> None:
    rows = pa.table({"id": [1, 2]})
    pg.psql('CREATE SCHEMA "what?"')
    try:
        for _ in range(2):
            pg.write(rows, dbtable='"what?".t', commit=commit, txn=("app", 1))
            assert pg.psql('SELECT count(*) FROM "what?".t') == "2"
    finally:
        pg.psql('DROP SCHEMA "what?" CASCADE')


def test_a_numeric_of_rounded_thousands(pg: Pg) -> None:
    """Its scale is negative; the server would round what has hundreds."""
    pg.psql("CREATE TABLE t (n numeric(5, -3))")
    with pytest.raises(SchemaError, match=r"numeric\(5,-3\)"):
        pg.write(pa.table({"n": pa.array([Decimal(1500)], pa.decimal128(10, 0))}), dbtable="t")
    pg.psql("INSERT INTO t VALUES (12345)")
    assert pg.read("t").to_pylist() == [{"n": "12000"}]


def test_odd_names_are_names_everywhere(pg: Pg) -> None:
    pg.psql("CREATE TABLE y AS SELECT 1 AS a")
    hold_to_names(
        pg.reader,
        pg.write,
        lambda name: '"' + name.replace('"', '""') + '"',
        modes=["upsert", "skipExisting", "apply"],
    )
    assert pg.psql("SELECT * FROM y") == "1"
    assert pg.staged() == []
