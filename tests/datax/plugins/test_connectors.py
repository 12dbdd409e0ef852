"""Jobs that name a connector, by its own name or in DataX's form, as deltareader and icebergwriter."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_channel.connectors.base import connector as declaring
from spark_channel.connectors.base import registry
from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import connector_names, find_connector
from spark_channel.datax import load_job
from spark_channel.datax.plugins import readers, writers
from spark_channel.errors import JobFileError
from tests.behaviour.third_party import install
from tests.cli.typed import typed
from tests.connectors.postgresql.pg import Pg, own_schema
from tests.datax.ran import ran
from tests.servers.firebird import FirebirdServer
from tests.servers.postgres import PostgresServer

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

Run = Callable[[dict[str, Any]], int]


@pytest.fixture
def pg(postgres_server: PostgresServer) -> Iterator[Pg]:
    with own_schema(postgres_server) as made:
        yield made


@pytest.fixture(
    params=["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.newest])]
)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """Carries a job out with one of the engines; returns how many rows were written."""
    if request.param == "local":
        return lambda job: int(ran(tmp_path, job)["rows_written"])
    import spark_channel

    spark = request.getfixturevalue("spark")
    return lambda job: spark_channel.run(spark, job).rows


def lake(folder: Path) -> dict[str, Any]:
    """An Iceberg table of a catalog in a file, as a job's parameter."""
    from pyiceberg.catalog import load_catalog

    (folder / "warehouse").mkdir(exist_ok=True)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    load_catalog("jobs", **properties).create_namespace_if_not_exists("shop")
    return {"catalog": "jobs", "catalogProperties": properties, "dbtable": "shop.orders"}


def of_pg(pg: Pg, table: str) -> dict[str, Any]:
    return {**pg.server.login, "currentSchema": pg.schema, "dbtable": table}


def ids(folder: Path) -> list[int]:
    from deltalake import DeltaTable

    return sorted(DeltaTable(str(folder)).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.parametrize("suffixed", [False, True], ids=["connector", "DataX's form"])
def test_rows_go_from_postgresql_to_delta_to_iceberg_and_back_once(
    make_job: Any, pg: Pg, tmp_path: Path, run: Run, suffixed: bool
) -> None:
    pg.psql(
        f"SET search_path = {pg.schema}; CREATE TABLE t AS SELECT n AS id, 'x' || n AS name, n * 1.25::numeric(10, 2) "
        "AS total, timestamptz '2024-01-31 08:00+00' + n * interval '1 min' AS at FROM generate_series(1, 1000) n; "
        "ALTER TABLE t ADD PRIMARY KEY (id); CREATE TABLE u AS TABLE t WITH NO DATA"
    )
    reader, writer = ("reader", "writer") if suffixed else ("", "")
    delta, iceberg = {"path": str(tmp_path / "lake" / "orders")}, lake(tmp_path)
    source = {**of_pg(pg, "t"), "where": "id <= 900", "partitionColumn": "id"}
    steps = [{"name": "dx_pad", "parameter": {"columnIndex": 1, "paras": ["l", "5", "-"]}}]
    setting = {"speed": {"channel": 2, "record": 100_000}, "txn": "orders:20240131"}
    jobs = [
        make_job("postgresql", source, f"delta{writer}", delta, setting=setting),
        make_job(
            f"delta{reader}", delta, f"iceberg{writer}", iceberg, setting=setting, transformer=steps
        ),
        make_job(f"iceberg{reader}", iceberg, "postgresql", of_pg(pg, "u"), setting=setting),
    ]
    assert [run(job) for job in jobs] == [900, 900, 900]
    assert [run(job) for job in jobs] == [0, 0, 0]
    assert ids(tmp_path / "lake" / "orders") == list(range(1, 901))
    differs = (
        "SELECT count(*), sum(total), count(*) FILTER (WHERE length(u.name) = 5), "
        "count(*) FILTER (WHERE (t.id, t.total, t.at) IS DISTINCT FROM (u.id, u.total, u.at)) "
        f"FROM {pg.schema}.u JOIN {pg.schema}.t USING (id)"
    ).replace("sum(total)", "sum(u.total)")
    assert pg.psql(differs) == "900|506812.50|900|0"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (None, [1, 1, 2, 2]),
        ("append", [1, 1, 2, 2]),
        ("Overwrite", [1, 2]),
        ("error", None),
        ("errorIfExists", None),
    ],
)
def test_mode_says_what_happens_to_rows_that_are_there(
    make_job: Any, tmp_path: Path, mode: str | None, expected: list[int] | None
) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    target = {"path": str(tmp_path / "t"), **({"mode": mode} if mode else {})}
    job = make_job("parquet", {"path": str(tmp_path / "a.parquet")}, "delta", target)
    ran(tmp_path, job)
    report = ran(tmp_path, job, code=0 if expected else 1)
    assert ids(tmp_path / "t") == (expected or [1, 2])
    assert expected or "exists, and the mode is errorIfExists" in report["jobs"][0]["error"]


def test_a_relative_path_begins_in_the_current_folder(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1, 2], "b": [3, 4]}), tmp_path / "a.parquet")
    ran(
        tmp_path,
        make_job(
            "parquet", {"path": "a.parquet", "columns": ["id"]}, "deltawriter", {"path": "lake/a"}
        ),
    )
    assert ids(tmp_path / "lake" / "a") == [1, 2]


def test_several_targets_and_a_datax_plugin_at_one_end(make_job: Any, tmp_path: Path) -> None:
    job = make_job(setting={"errorLimit": {"record": 0}})
    job["job"]["content"][0]["writer"] = [
        {"name": "delta", "parameter": {"path": str(tmp_path / "d")}},
        {"name": "iceberg", "parameter": lake(tmp_path)},
    ]
    report = ran(tmp_path, job)
    assert [each["rows"] for each in report["jobs"][0]["transfers"][0]["targets"]] == [10, 10]


def test_what_a_transformer_refuses_ends_a_job_into_a_table_that_leaves_no_row_out(
    make_job: Any, tmp_path: Path
) -> None:
    steps = [{"name": "dx_substr", "parameter": {"columnIndex": 0, "paras": ["5", "1"]}}]
    job = make_job(writer="delta", writes={"path": str(tmp_path / "t")}, transformer=steps)
    ran(tmp_path, job, code=3)
    assert not (tmp_path / "t" / "_delta_log").exists()
    (warning,) = [each for each in load_job(job).warnings if "one row that is refused" in each]
    assert warning.startswith("job.content[0].writer.parameter: ")
    job["job"]["setting"] = {"errorLimit": {"record": 3}}
    with pytest.raises(
        JobFileError,
        match=r"^job\.setting\.errorLimit got .*delta cannot leave rows out: all files",
    ):
        load_job(job)


def test_a_target_that_leaves_rows_out_keeps_the_job_s_limit_or_its_own(
    make_job: Any, tmp_path: Path
) -> None:
    steps = [{"name": "dx_substr", "parameter": {"columnIndex": 0, "paras": ["5", "1"]}}]
    target = {"path": str(tmp_path / "t")}
    job = make_job(writer="parquet", writes=target, transformer=steps)
    assert load_job(job).spec.max_dirty_rows is None
    assert ran(tmp_path, job)["rows_refused"] == 10
    own = make_job(writer="parquet", writes={**target, "maxDirtyRows": 3}, transformer=steps)
    ran(tmp_path, own, code=3)
    own["job"]["setting"] = {"errorLimit": {"record": 0}}
    with pytest.raises(
        JobFileError, match=r"^job\.setting\.errorLimit got a limit, and job.* has another"
    ):
        load_job(own)


DELTA = {"path": "/lake/a"}
PG = {"url": "postgresql://etl:hunter2@h/shop", "dbtable": "t", "password": "hunter2"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"reads": {**DELTA, "verson": 3}},
            r"^job\.content\[0\]\.reader\.parameter\.verson: unknown option 'verson' of .*did you mean 'version'",
        ),
        (
            {"reads": {**DELTA, "VersionAsOf": "x"}},
            r"reader\.parameter\.VersionAsOf: option 'version' got 'x'",
        ),
        (
            {"reads": {**DELTA, "column": ["a"]}},
            r"reader\.parameter\.column: unknown .*did you mean 'columns'",
        ),
        (
            {"reads": {}},
            r"^job\.content\[0\]\.reader\.parameter: option 'path' is missing \(connector 'delta'\)",
        ),
        (
            {"reads": {**DELTA, "where": ["a > 1"]}},
            r"reader\.parameter\.where got a list; it takes a text",
        ),
        (
            {"reads": {**DELTA, "where": {"a": 1}}},
            r"reader\.parameter\.where got an object; it takes a text",
        ),
        (
            {"reads": {**DELTA, "columns": {"a": 1}}},
            r"reader\.parameter\.columns: option 'columns' got",
        ),
        (
            {"reads": {**DELTA, "reader": "csv"}},
            r"reader\.parameter\.reader got 'csv'; it takes nothing: reader\.name",
        ),
        ({"reads": {**DELTA, "mode": "append"}}, r"reader\.parameter\.mode: unknown option 'mode'"),
        (
            {"reads": {**DELTA, "versionAsOf": 1, "version": 2}},
            "version got another value; it takes that of ver",
        ),
        (
            {"writes": {**DELTA, "mode": "ignore"}},
            r"writer\.parameter\.mode got 'ignore'; it takes append, overwrite",
        ),
        (
            {"writes": {**DELTA, "mergeSchema": True}},
            r"parameter\.mergeSchema: .*not supported: it is 'onSchemaChange",
        ),
        (
            {"writes": {**DELTA, "schema": "a INT"}},
            r"writer\.parameter\.schema: unknown option 'schema'",
        ),
        (
            {"writes": {**DELTA, "commit": "task"}},
            r"writer\.parameter\.commit: option 'commit' got 'task'",
        ),
        (
            {"setting": {"commit": "task"}},
            r"^job\.setting\.commit, or --commit: option 'commit' got 'task'",
        ),
        (
            {
                "writes": {**DELTA, "txnAppId": "a", "txnVersion": 1},
                "setting": {"txn": "b:1"},
            },
            r"writer\.parameter\.txnAppId got 'a'; it takes nothing beside the job's own txn",
        ),
        (
            {"reads": {**DELTA, "channels": 2}, "setting": {"speed": {"channel": 3}}},
            r"reader\.parameter\.channels got 2; it takes 3, as the job's settings or its other end say",
        ),
        (
            {"reads": {**DELTA, "rowsPerSecond": "5k"}, "writes": {**DELTA, "rowsPerSecond": "6k"}},
            r"writer\.parameter\.rowsPerSecond got 6000; it takes 5000",
        ),
        (
            {"reader": "deltta"},
            r"reader\.name got 'deltta'; did you mean 'delta'\? it takes a connector: adbc, ",
        ),
        (
            {"reader": "discard"},
            r"reader\.name got 'discard'; connector 'discard' has no reader; it takes",
        ),
        (
            {"writer": "kafka", "writes": {"topic": "t", "bootstrapServers": ["a b"]}},
            r"parameter\.bootstrapServers: ",
        ),
    ],
)
def test_what_a_connector_does_not_take_is_refused_at_its_path(
    make_job: Any, change: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {
        "reader": "delta",
        "reads": DELTA,
        "writer": "delta",
        "writes": DELTA,
        **change,
    }
    with pytest.raises(JobFileError, match=message):
        load_job(make_job(**given))


@pytest.mark.parametrize(
    "wrong",
    [
        {"passwrd": "hunter2"},
        {"fetchsize": "x"},
        {"url": "hunter2"},
        {"password": ["hunter2", None]},
    ],
)
def test_no_message_shows_a_secret(make_job: Any, tmp_path: Path, wrong: dict[str, Any]) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(make_job("postgresql", {**PG, **wrong})))
    done = typed("check", str(file), "--output", "json")
    assert "hunter2" not in done.output.replace("option 'url' has scheme 'hunter2'", "")
    assert "hunter2" not in repr(load_job(make_job("postgresql", PG)))


def test_references_are_kept_until_the_job_runs_also_inside_objects(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    target = lake(tmp_path)
    target["catalogProperties"]["note"] = "${env:NOTE}"
    target["transactionRows"] = "${env:ROWS}"
    job = make_job("${kind}", {"path": f"${{file:{tmp_path}/where}}"}, "iceberg", target)
    loaded = load_job(job, {"kind": "parquet"})
    assert '"note": "${env:NOTE}"' in loaded.spec.writer.options["catalogProperties"]
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job))
    assert "1 runs" in typed("check", str(file), "-p", "-Dkind=parquet").output
    (tmp_path / "where").write_text(f"{tmp_path}/a.parquet\n")
    monkeypatch.setenv("NOTE", 'a "quoted" \\ text')
    monkeypatch.setenv("ROWS", "1000")
    done = typed("run", str(file), "-p", "-Dkind=parquet", "--engine", "local")
    assert done.exit_code == 0, done.output
    monkeypatch.delenv("ROWS")
    assert typed("run", str(file), "-p", "-Dkind=parquet", "--engine", "local").exit_code == 2


def test_plan_and_check_tell_of_connectors(make_job: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    file = tmp_path / "job.json"
    reads = {"path": str(tmp_path / "a.parquet"), "schema": "id BIGINT"}
    file.write_text(
        json.dumps(
            make_job("parquet", reads, "delta", {"path": str(tmp_path / "t"), "mode": "overwrite"})
        )
    )
    for more in ([], ["--connect"]):
        assert "1 runs" in typed("check", str(file), *more).output
    shown = typed("plan", str(file)).output
    assert f"{tmp_path}/a.parquet -> {tmp_path}/t (delta)" in shown
    assert "mode overwrite" in shown
    assert not (tmp_path / "t").exists()


def test_a_connector_whose_libraries_are_missing_is_told_by_check(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(declaring, "_is_installed", lambda name: name != "deltalake")
    file = tmp_path / "job.json"
    file.write_text(json.dumps(make_job("delta", {"path": "a"})))
    (job,) = json.loads(typed("check", str(file), "--output", "json").stdout)["jobs"]
    assert (job["state"], job["faults"]) == (
        "needs a driver",
        ["reader: pip install 'spark-channel[delta]'"],
    )


def test_a_list_becomes_what_the_option_takes(make_job: Any) -> None:
    kafka = {"bootstrapServers": ["a:1", "b:2"], "topic": ["t", "u"], "partitions": [0, 1]}
    options = load_job(
        make_job("kafka", {**kafka, "beginOffsets": {"t": {"0": 3}}})
    ).spec.reader.options
    assert dict(options) == {
        "bootstrapServers": "a:1,b:2",
        "topic": "t,u",
        "partitions": "0,1",
        "beginOffsets": '{"t": {"0": 3}}',
    }
    streamload = {
        "url": ["http://a:1", "http://b:2"],
        "backends": ["x:1", "y:2"],
        "database": "d",
        "dbtable": "t",
    }
    options = load_job(make_job(writer="streamload", writes=streamload)).spec.writer.options
    assert (options["url"], options["backends"]) == ("http://a:1,http://b:2", '["x:1", "y:2"]')
    model = find_connector({"writer": "streamload"}, "writer").options_class("writer")
    parsed: Any = model.parse(options)[0]
    assert parsed.backends == ("x:1", "y:2")


def test_options_of_the_whole_job_become_its_settings(make_job: Any) -> None:
    reads = {**DELTA, "numPartitions": 4, "rowsPerSecond": "5k", "jobId": "nightly"}
    spec = load_job(make_job("delta", reads, "delta", {**DELTA, "rowsPerSecond": 5000})).spec
    assert (spec.channels, spec.rows_per_second, spec.job_id) == (4, 5_000, "nightly")


def test_an_option_of_the_user_counts_more_than_what_a_writer_of_texts_wants(make_job: Any) -> None:
    text = {"path": "/out", "fileName": "x", "writeMode": "append"}
    options = load_job(make_job("postgresql", PG, "txtfilewriter", text)).spec.reader.options
    assert options["timestampsAs"] == "local"
    options = load_job(
        make_job("postgresql", {**PG, "timestampsas": "instant"}, "txtfilewriter", text)
    ).spec.reader.options
    assert options["timestampsAs"] == "instant"


def test_no_connector_has_a_name_of_datax_or_an_option_that_the_save_mode_hides() -> None:
    assert {*readers(), *writers()}.isdisjoint(connector_names())
    for name in connector_names("writer"):
        assert (
            "mode" not in find_connector({"writer": name}, "writer").options_class("writer").names()
        )


def test_a_name_that_is_both_is_datax_s(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Connector("streamreader", "their.module:Reader", None, datax=("mysql", "lines"))
    monkeypatch.setattr(registry, "_third_parties", lambda: {"streamreader": theirs})
    assert load_job(make_job("streamreader")).spec.reader.name == "generator"
    with pytest.raises(JobFileError, match=r"mysqlreader|connection is missing"):
        load_job(make_job("mysqlreader", {"path": "x"}))
    assert "linesreader" in readers()
    assert "lineswriter" not in writers()


def test_a_third_party_s_connector_is_named_as_ours_are(
    make_job: Any, firebird_server: FirebirdServer, tmp_path: Path
) -> None:
    install()
    name = f"s{uuid.uuid4().hex[:12]}"
    firebird_server.create_database(name)
    try:
        firebird_server.sql(
            "CREATE TABLE t (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(20))", database=name
        )
        rows = [[n, f"n{n}"] for n in range(50)]
        firebird_server.insert("INSERT INTO t VALUES (?, ?)", rows, database=name)
        source = {**firebird_server.login(name), "dbtable": "t"}
        setting = {"txn": "fb:1", "speed": {"channel": 2}}
        target = {"path": str(tmp_path / "t")}
        to_delta = make_job("firebird", source, "delta", target, setting=setting)
        back = make_job("delta", target, "Firebird", {**source, "dbtable": "u"}, setting=setting)
        for expected in (50, 0):
            assert [ran(tmp_path, job)["rows_written"] for job in (to_delta, back)] == [
                expected,
                expected,
            ]
        assert firebird_server.sql("SELECT COUNT(*), COUNT(DISTINCT id) FROM u", database=name) == [
            (50, 50)
        ]
        wrong = make_job("firebird", {**source, "dbtabel": "t"})
        with pytest.raises(
            JobFileError, match=r"reader\.parameter\.dbtabel: unknown .*did you mean 'dbtable'"
        ):
            load_job(wrong)
        with pytest.raises(JobFileError, match=r"it takes a connector: .*firebird"):
            load_job(make_job("nonesuch"))
    finally:
        firebird_server.drop_database(name)
