"""A table that is written by what reads it: each row is there once, in every commit mode, or the job is refused."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.connectors import load_reader
from spark_channel.errors import OptionError, SourceError, UnsupportedError
from spark_channel.local import LocalEngine
from spark_channel.planning import Endpoint, EndpointOverrides, Target, TransferSpec
from spark_channel.progress import TransferReport
from spark_channel.transfers.dispatch import carry_out
from tests.connectors.sql.places import Place, open_place
from tests.servers.clickhouse import PASSWORD, USER, clickhouse_server
from tests.servers.ferretdb import ferret_server
from tests.servers.opensearch import opensearch_server

ROWS = 300
_KINDS = ("sqlite", "postgresql", "mysql", "duckdb", "adbc-sqlite", "adbc-postgresql")
_APPENDED = [
    pytest.param(kind, marks=pytest.mark.soak) if kind == "adbc-postgresql" else kind
    for kind in _KINDS
]
"""The ADBC connector appends by SQLite's driver here; by PostgreSQL's in the other tests."""
_BY_TASK = tuple(kind for kind in _KINDS if kind != "duckdb")


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as made:
        yield made


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with open_place(request, request.param, tmp_path) as made:
        key = "" if made.kind.startswith("adbc") else "id"
        made.create("t", {"id": "int NOT NULL", "v": "int"}, [(n, n) for n in range(ROWS)], key)
        yield made


def end(place: Place, dbtable: str = "t", **options: Any) -> Endpoint:
    login = {key: value for key, value in place.options.items() if key != "reader"}
    named = {} if "query" in options else {"dbtable": place.in_schema(dbtable)}
    return Endpoint(place.kind.partition("-")[0], {**login, **named, **options})


def copy(engine: LocalEngine, source: Endpoint, target: Endpoint, **more: Any) -> TransferReport:
    """One channel reads the splits in their order: the last one sees what the first ones have committed."""
    return carry_out(engine, TransferSpec(source, target, **{"channels": 1, **more}))


def shifted(place: Place, table: str = "t", by: int = ROWS) -> dict[str, Any]:
    """What reads the table under other keys, by ranges of them: so it can be added to the table."""
    key, value = place.quoted("id"), place.quoted("v")
    query = f"SELECT {key} + {by} AS id, {value} AS v FROM {place.in_schema(table)}"
    return {"query": query, "partitionColumn": "id"}


def ids(place: Place, table: str = "t") -> list[int]:
    return sorted(place.read(table, columns="id")["id"].to_pylist())


ONCE = list(range(ROWS))
TWICE = list(range(2 * ROWS))


@pytest.mark.parametrize(
    ("splits", "limit"),
    [
        (1, None),
        (5, 100_000),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in ((1, 100_000), (5, None))),
    ],
)
@pytest.mark.parametrize("place", _APPENDED, indirect=True)
def test_a_table_is_appended_to_itself(
    engine: LocalEngine, place: Place, splits: int, limit: int | None
) -> None:
    source, more = (
        end(place, **shifted(place)),
        {"splits_per_channel": splits, "rows_per_second": limit},
    )
    says = "'commit' to job" if place.kind in _BY_TASK else "commit"
    with pytest.raises(OptionError, match=says):
        copy(engine, source, end(place, commit="task"), **more)
    assert ids(place) == ONCE
    assert copy(engine, source, end(place), **more).commit == "job"
    assert ids(place) == TWICE


@pytest.mark.parametrize("limit", [None, 100_000])
@pytest.mark.parametrize("place", _APPENDED, indirect=True)
def test_a_table_without_a_key_is_doubled(
    engine: LocalEngine, place: Place, limit: int | None
) -> None:
    """By what it is cut by itself: pages, row numbers, ranges of a column with NULLs."""
    place.create("bare", {"id": "int"}, [(n if n % 10 else None,) for n in range(ROWS)])
    before = place.read("bare")["id"].to_pylist()
    stride = {"partitionColumn": "id", "lowerBound": "0", "upperBound": str(ROWS)}
    for cut in ({}, {"partitionColumn": "id"}, stride):
        if place.kind == "duckdb" and not cut:
            continue  # the claim is written into the file, and moves its rows: see the next test
        copy(
            engine,
            end(place, "bare", **cut),
            end(place, "bare"),
            splits_per_channel=5,
            rows_per_second=limit,
        )
        after = place.read("bare")["id"].to_pylist()
        assert sorted(after, key=str) == sorted(2 * before, key=str)
        before = after


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
def test_row_numbers_of_a_file_that_is_written_are_refused(
    engine: LocalEngine, place: Place
) -> None:
    with pytest.raises(SourceError, match="name a 'partitionColumn'"):
        copy(engine, end(place), end(place), save_mode="overwrite")
    assert ids(place) == ONCE


@pytest.mark.parametrize("place", _KINDS, indirect=True)
def test_a_table_is_overwritten_by_what_is_read_of_it(engine: LocalEngine, place: Place) -> None:
    source = end(place, where="v >= 100", partitionColumn="id")
    with pytest.raises(OptionError):
        copy(engine, source, end(place, commit="task"), save_mode="overwrite")
    assert ids(place) == ONCE
    copy(engine, source, end(place), save_mode="overwrite", splits_per_channel=5)
    assert ids(place) == ONCE[100:]


@pytest.mark.parametrize(
    "place", [kind for kind in _BY_TASK if not kind.startswith("adbc")], indirect=True
)
def test_a_script_before_the_rows_takes_none_of_them(engine: LocalEngine, place: Place) -> None:
    script = {"preSql": f"DELETE FROM {place.quoted('t')} WHERE {place.quoted('v')} >= 10"}
    source = end(place, **shifted(place))
    with pytest.raises(OptionError, match="'preSql' changes it before its rows are read"):
        copy(engine, source, end(place, **script, commit="task"))
    assert ids(place) == ONCE
    copy(engine, source, end(place, **script))
    assert ids(place) == [*range(10), *range(ROWS, 2 * ROWS)]


@pytest.mark.parametrize("script", ["DELETE FROM t", '["truncate table t"]', 'truncate "t" ;'])
@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_script_at_the_start_does_not_empty_the_source(
    engine: LocalEngine, place: Place, script: str
) -> None:
    with pytest.raises(OptionError, match="'startSql' empties it"):
        copy(engine, end(place), end(place, startSql=script))
    assert ids(place) == ONCE
    copy(engine, end(place, **shifted(place)), end(place, startSql="DELETE FROM t WHERE id < 0"))
    assert ids(place) == TWICE


@pytest.mark.parametrize("mode", ["upsert", "skipExisting"])
@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql", "duckdb"], indirect=True)
def test_rows_are_written_by_key_into_the_table_they_come_from(
    engine: LocalEngine, place: Place, mode: str
) -> None:
    source, by_key = end(place, **shifted(place, by=100)), {"writeMode": mode, "keyColumns": "id"}
    with pytest.raises(OptionError):
        copy(engine, source, end(place, **by_key, commit="task"), splits_per_channel=5)
    copy(engine, source, end(place, **by_key), splits_per_channel=5)
    found = place.read("t", columns="id,v").to_pylist()
    changed = {
        n: n - 100 if n >= (100 if mode == "upsert" else ROWS) else n for n in range(ROWS + 100)
    }
    assert {row["id"]: row["v"] for row in found} == changed
    assert len(found) == ROWS + 100


@pytest.mark.parametrize("place", _BY_TASK, indirect=True)
def test_another_table_is_written_by_task(engine: LocalEngine, place: Place) -> None:
    for name in ("other", "u"):
        place.create(name, {"id": "int", "v": "int"}, [])
    by_task = {"commit": "task"}
    assert copy(engine, end(place), end(place, "other", **by_task)).commit == "task"
    assert copy(engine, end(place, **shifted(place)), end(place, "u", **by_task)).commit == "task"
    assert (ids(place, "other"), ids(place, "u")) == (ONCE, TWICE[ROWS:])


def test_a_table_of_the_same_name_is_another_one(engine: LocalEngine, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with (
        open_place(None, "sqlite", tmp_path / "one") as one,  # type: ignore[arg-type] # no session is asked for
        open_place(None, "sqlite", tmp_path / "two") as two,  # type: ignore[arg-type] # no session is asked for
    ):
        for each in (one, two):
            each.create("t", {"id": "int", "v": "int"}, [(1, 1)])
        assert copy(engine, end(one), end(two, commit="task")).commit == "task"
        assert ids(two) == [1, 1]


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_role_that_may_not_ask_for_the_cluster_finds_it(
    engine: LocalEngine, place: Place
) -> None:
    schema = str(place.options["currentschema"])
    asks = "FUNCTION pg_catalog.pg_control_system()"
    place.run(
        f"CREATE ROLE plain_{schema} LOGIN PASSWORD 'p'; GRANT ALL ON SCHEMA {schema} TO plain_{schema}; "
        f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO plain_{schema}; REVOKE EXECUTE ON {asks} FROM PUBLIC"
    )
    try:
        source = end(place, user=f"plain_{schema}", password="p")
        with pytest.raises(OptionError, match="'commit' to job"):
            copy(engine, source, end(place, commit="task"))
    finally:
        place.run(
            f"GRANT EXECUTE ON {asks} TO PUBLIC; DROP OWNED BY plain_{schema}; DROP ROLE plain_{schema}"
        )


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql", "duckdb"], indirect=True)
def test_a_view_of_a_view_is_the_table(engine: LocalEngine, place: Place) -> None:
    key, value = place.quoted("id"), place.quoted("v")
    place.run(f"CREATE VIEW v1 AS SELECT {key} + {ROWS} AS id, {value} AS v FROM t")
    place.run("CREATE VIEW v2 AS WITH found AS (SELECT * FROM v1) SELECT id, v FROM found")
    source = end(place, "v2", partitionColumn="id")
    with pytest.raises(OptionError):
        copy(engine, source, end(place, commit="task"))
    copy(engine, source, end(place), splits_per_channel=5)
    assert ids(place) == TWICE


def other_spellings(place: Place, directory: Path) -> dict[str, dict[str, Any]]:
    """How else the database, and in it table t, can be named."""
    found: dict[str, dict[str, Any]] = {}
    if place.kind == "postgresql":
        url, schema = str(place.options["url"]), str(place.options["currentschema"])
        found["jdbc"] = {"url": f"jdbc:{url}"}
        found["host"] = {"url": url.replace("127.0.0.1", "localhost")}
        found["schema"] = {"dbtable": f'"{schema}"."t"', "currentschema": "public"}
        found["case"] = {"dbtable": f"{schema.upper()}.T"}
    elif place.kind == "mysql":
        url = str(place.options["url"])
        found["jdbc"] = {"url": f"jdbc:{url.replace('127.0.0.1', 'localhost')}"}
        found["database"] = {"dbtable": f"`{url.rpartition('/')[2]}`.`t`"}
    else:
        path = Path(place.options["path"])
        linked, hard = directory / f"linked{path.suffix}", directory / f"hard{path.suffix}"
        linked.symlink_to(path)
        found["link"] = {"path": str(linked)}
        found["dots"] = {"path": str(directory / "x" / ".." / path.name)}
        found["case"] = {"dbtable": "main.T"}
        if place.kind == "sqlite":
            hard.hardlink_to(path)
            found["hard link"] = {"path": str(hard)}
            found["url"] = {"url": f"jdbc:sqlite:{path}"}
    return found


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql"], indirect=True)
def test_another_spelling_is_the_same_table(
    engine: LocalEngine, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "x").mkdir()
    for name, spelled in other_spellings(place, tmp_path).items():
        target = end(place)
        options = {**target.options, **spelled}
        if "url" in spelled:
            options.pop("path", None)
        for source, written in (
            (end(place), options),
            (Endpoint(target.name, options), target.options),
        ):
            with pytest.raises(OptionError, match="'commit' to job"):
                copy(engine, source, Endpoint(target.name, {**written, "commit": "task"}))
        assert ids(place) == ONCE, name


def test_another_connector_reaches_the_same_table(engine: LocalEngine, tmp_path: Path) -> None:
    with open_place(None, "sqlite", tmp_path) as place:  # type: ignore[arg-type] # no session is asked for
        place.create("t", {"id": "int", "v": "int"}, [(1, 1)])
        adbc = Endpoint(
            "adbc", {"driver": "sqlite", "uri": f"file:{place.options['path']}", "dbtable": "T"}
        )
        for source, target in ((end(place), adbc), (adbc, end(place))):
            with pytest.raises(OptionError, match="'commit' to job"):
                copy(engine, source, Endpoint(target.name, {**target.options, "commit": "task"}))


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_partitions_and_children_are_their_parents(engine: LocalEngine, place: Place) -> None:
    place.run(
        "CREATE TABLE p (id bigint, v bigint) PARTITION BY RANGE (id); "
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100); "
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (1000); "
        "CREATE TABLE i (id bigint, v bigint); CREATE TABLE i1 () INHERITS (i); "
        "INSERT INTO p SELECT n, n FROM generate_series(0, 199) n"
    )
    for source, target in (("p", "p1"), ("p2", "p"), ("i", "i1")):
        with pytest.raises(OptionError, match="'commit' to job"):
            copy(engine, end(place, source), end(place, target, commit="task"))
    text = f"SELECT id + 100 AS id, v FROM {place.options['currentschema']}.p1"
    # Siblings share no row.
    assert copy(engine, end(place, query=text), end(place, "p2", commit="task")).commit == "task"
    assert ids(place, "p") == sorted([*range(200), *range(100, 200)])


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_what_cannot_be_looked_into_is_staged(engine: LocalEngine, place: Place) -> None:
    place.run(
        "CREATE FUNCTION all_of_t() RETURNS TABLE (id bigint, v bigint) LANGUAGE sql AS 'SELECT id, v FROM t'; "
        f"CREATE VIEW hidden AS SELECT id + {ROWS} AS id, v FROM all_of_t()"
    )
    source = end(place, "hidden", partitionColumn="id")
    assert copy(engine, source, end(place), splits_per_channel=5).commit == "job"
    assert ids(place) == TWICE
    place.create("other", {"id": "int", "v": "int"}, [])
    # The user knows.
    assert copy(engine, source, end(place, "other", commit="task")).commit == "task"


_OWN_FUNCTIONS = {
    "sqlite": ("printf('%d', v)", "SELECT t.id, j.value AS v FROM t, json_each('[1]') AS j"),
    "postgresql": ("pg_size_pretty(v)", "SELECT n AS id, n AS v FROM generate_series(1, 300) AS n"),
    "mysql": ("crc32(v)", "SELECT id, v FROM t WHERE date_format(now(), '%Y') > '2000'"),
}


@pytest.mark.parametrize("more", [{"commit": "task"}, {"maxDirtyRows": "3"}], ids=str)
@pytest.mark.parametrize("place", _OWN_FUNCTIONS, indirect=True)
def test_functions_of_the_database_read_no_table(
    engine: LocalEngine, place: Place, more: dict[str, str]
) -> None:
    """So another table is emptied and written with commit=task."""
    call, query = _OWN_FUNCTIONS[place.kind]
    place.create("other", {"id": "int", "v": "text"}, [(1, "old")])
    scripted = {**more, "preSql": "DELETE FROM other"}
    called = f"SELECT id, {call} AS v FROM t"
    for text in (called, query):
        source = end(place, query=f"SELECT id, CAST(v AS CHAR(30)) AS v FROM ({text}) AS q")
        for options, mode in ((more, "overwrite"), (scripted, "append")):
            report = copy(engine, source, end(place, "other", **options), save_mode=mode)
            assert report.commit == "task"
            assert len(ids(place, "other")) == ROWS


@pytest.mark.parametrize("place", ["postgresql", "mysql"], indirect=True)
def test_functions_of_users_may_read_the_target(engine: LocalEngine, place: Place) -> None:
    body = "(SELECT max(v) FROM t)"
    name = f"most_{uuid.uuid4().hex}"
    place.run(
        f"CREATE FUNCTION {name}() RETURNS int DETERMINISTIC READS SQL DATA RETURN {body}"
        if place.kind == "mysql"
        else f"CREATE FUNCTION {name}() RETURNS bigint LANGUAGE sql AS 'SELECT {body}'"
    )
    place.create("other", {"id": "int", "v": "int"}, [(1, 1)])
    schema = place.in_schema("t").rpartition(".")[0]
    for call in (name, f"{schema}.{name}") if schema else (name,):
        source = end(place, query=f"SELECT id, {call}() AS v FROM other")
        with pytest.raises(OptionError, match="its source may be the target"):
            copy(engine, source, end(place, commit="task"), save_mode="overwrite")
    assert ids(place) == ONCE


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_queries_in_a_text_may_read_the_target(engine: LocalEngine, place: Place) -> None:
    schema = place.options["currentschema"]
    place.run(f"CREATE EXTENSION IF NOT EXISTS tablefunc SCHEMA {schema}")
    pivot = f"{schema}.crosstab('SELECT id, 1, v FROM {schema}.t ORDER BY 1') AS c (id bigint, v bigint)"
    place.run(f"CREATE VIEW pivot AS SELECT id, v FROM {pivot}")
    xml = "SELECT 1 AS id, length(query_to_xml('SELECT * FROM t', true, true, '')::text) AS v"
    for source in (
        end(place, "pivot"),
        end(place, query=f"SELECT * FROM {pivot}"),
        end(place, query=xml),
    ):
        with pytest.raises(OptionError, match="its source may be the target"):
            copy(engine, source, end(place, commit="task"), save_mode="overwrite")
    assert ids(place) == ONCE


@pytest.mark.parametrize("place", ["sqlite", "postgresql", "mysql", "duckdb"], indirect=True)
def test_names_are_quoted_for_the_catalog(engine: LocalEngine, place: Place) -> None:
    odd = place.quoted("a\\' OR '")
    place.run(f"CREATE VIEW {odd} AS SELECT id + {ROWS} AS id, v FROM t")
    place.run(f"CREATE VIEW outer_one AS SELECT id, v FROM {odd}")
    with pytest.raises(OptionError):
        copy(engine, end(place, "outer_one"), end(place, commit="task"))
    assert ids(place) == ONCE


@pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)
def test_one_of_several_sources_or_targets_is_enough(engine: LocalEngine, place: Place) -> None:
    for name in ("other", "third"):
        place.create(name, {"id": "int", "v": "int"}, [])
    one = end(place)
    parts = (EndpointOverrides({"dbtable": "t"}), EndpointOverrides({"dbtable": "other"}))
    both = Endpoint(one.name, one.options, parts=parts)
    for target in ("t", "other"):
        with pytest.raises(OptionError, match="'commit' to job"):
            copy(engine, both, end(place, target, commit="task"))
    source = end(place, **shifted(place))
    report = copy(
        engine, source, end(place, "other"), targets=(Target(end(place, "other")), Target(one))
    )
    assert [each.commit for each in report.targets] == ["job", "job"]
    assert (ids(place), ids(place, "other")) == (TWICE, TWICE[ROWS:])
    swapped = Endpoint(
        one.name,
        one.options,
        parts=(EndpointOverrides({"dbtable": "other"}), EndpointOverrides({"dbtable": "third"})),
    )
    # 1:1, and the second reads what the first writes.
    assert copy(engine, both, swapped).commit == "job"
    assert (ids(place, "other"), ids(place, "third")) == (
        sorted([*TWICE, *TWICE[ROWS:]]),
        TWICE[ROWS:],
    )


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_rows_that_may_be_refused_need_another_table(engine: LocalEngine, place: Place) -> None:
    with pytest.raises(OptionError, match="omit 'maxDirtyRows'"):
        copy(engine, end(place, **shifted(place)), end(place), max_dirty_rows=5)
    assert ids(place) == ONCE


def lines(folder: Path, kind: str) -> list[int]:
    reader, _ = load_reader({"reader": kind, "path": str(folder)})
    schema = reader.schema()
    batches = [batch for split in reader.split(1) for batch in reader.read(split)]
    return sorted(pa.Table.from_batches(batches, schema)["id"].to_pylist())


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
@pytest.mark.parametrize(
    ("kind", "commit"), [("parquet", None), ("parquet", "task"), ("json", "task"), ("delta", None)]
)
def test_files_are_read_as_they_were_at_the_start(
    engine: LocalEngine, tmp_path: Path, kind: str, commit: str | None, mode: str, splits: int
) -> None:
    """A read notes its files, or the version of its table; what is replaced stays readable for it."""
    folder = Endpoint(kind, {"path": str(tmp_path / "lines")})
    copy(engine, Endpoint("generator", {"rows": "1000"}), folder, channels=4)
    before = lines(tmp_path / "lines", kind)
    target = Endpoint(kind, {**folder.options, **({} if commit is None else {"commit": commit})})
    copy(engine, folder, target, splits_per_channel=splits, save_mode=mode)
    assert lines(tmp_path / "lines", kind) == sorted(before * (2 if mode == "append" else 1))


@pytest.mark.parametrize("commit", ["job", "task"])
def test_a_folder_that_contains_the_target_is_read_as_it_was(
    engine: LocalEngine, tmp_path: Path, commit: str
) -> None:
    inner = tmp_path / "all" / "inner"
    copy(
        engine,
        Endpoint("generator", {"rows": "500"}),
        Endpoint("parquet", {"path": str(inner)}),
        channels=4,
    )
    outer = Endpoint("parquet", {"path": str(tmp_path / "all")})
    for rows in (1000, 2000):
        copy(
            engine,
            outer,
            Endpoint("parquet", {"path": str(inner), "commit": commit}),
            splits_per_channel=5,
        )
        assert len(lines(inner, "parquet")) == rows


@contextmanager
def _mongodb() -> Iterator[tuple[Endpoint, Endpoint]]:
    with ferret_server() as server:
        server.put("t", [{"_id": n, "v": n} for n in range(ROWS)])
        at = {"url": server.url}
        yield (
            Endpoint("mongodb", {**at, "collection": "t"}),
            Endpoint("mongodb", {**at, "collection": "other"}),
        )


@contextmanager
def _elasticsearch() -> Iterator[tuple[Endpoint, Endpoint]]:
    with opensearch_server() as server:
        for name in ("t", "other"):
            server.put(name, {str(n): {"v": n} for n in range(10)})
        at = {"url": server.url, "schema": "v BIGINT"}
        yield (
            Endpoint("elasticsearch", {**at, "index": "t"}),
            Endpoint("elasticsearch", {**at, "index": "other"}),
        )


@contextmanager
def _clickhouse() -> Iterator[tuple[Endpoint, Endpoint]]:
    with clickhouse_server() as server:
        for name in ("t", "other"):
            server.sql(f"CREATE TABLE {name} (id Int64, v Int64) ENGINE = MergeTree ORDER BY id")
        server.sql(f"INSERT INTO t SELECT number, number FROM numbers({ROWS})")
        at = {"url": server.url, "user": USER, "password": PASSWORD}
        yield (
            Endpoint("clickhouse", {**at, "dbtable": "t"}),
            Endpoint("clickhouse", {**at, "dbtable": "other"}),
        )


@pytest.mark.parametrize("ends", [_mongodb, _elasticsearch, _clickhouse])
def test_a_target_that_stages_nothing_is_not_written_by_its_source(
    engine: LocalEngine, ends: Any
) -> None:
    with ends() as (source, other):
        target = Endpoint(source.name, {k: v for k, v in source.options.items() if k != "schema"})
        for mode in ("append", "overwrite"):
            with pytest.raises(UnsupportedError, match="the source is the target"):
                copy(engine, source, target, save_mode=mode)
        apart = Endpoint(other.name, {k: v for k, v in other.options.items() if k != "schema"})
        assert copy(engine, source, apart).rows > 0
