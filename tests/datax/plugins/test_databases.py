import json
from typing import Any

import pytest

from spark_channel.connectors import Connector, load_reader
from spark_channel.connectors.base import registry
from spark_channel.datax import LoadedJob, load_job
from spark_channel.errors import JobFileError, OptionError
from spark_channel.transform import prepare

MYSQL = "jdbc:mysql://h:3306/shop"


def read(make_job: Any, plugin: str = "mysqlreader", **parameter: Any) -> LoadedJob:
    given = {
        "column": ["id", "name"],
        "connection": [{"jdbcUrl": [MYSQL], "table": ["t"]}],
        **parameter,
    }
    return load_job(make_job(plugin, given, setting={"speed": {"channel": 4}}))


def write(make_job: Any, plugin: str = "mysqlwriter", **parameter: Any) -> LoadedJob:
    given = {"column": ["a", "b"], "connection": [{"jdbcUrl": MYSQL, "table": ["t"]}], **parameter}
    return load_job(make_job(writer=plugin, writes=given))


def tables(loaded: LoadedJob) -> list[Any]:
    return [part.options.get("dbtable") for part in loaded.spec.reader.parts]


def at(url: str, table: str = "t", **more: Any) -> list[dict[str, Any]]:
    return [{"jdbcUrl": [url], "table": [table], **more}]


def test_a_reader_becomes_our_connectors_options(make_job: Any) -> None:
    loaded = read(
        make_job,
        username="u",
        password="p",
        splitPk="`id`",
        where=" day > '2024-01-01' ; ",
        fetchSize="100",
        session=["set a = 1", "set b = 2"],
        splitFactor=2,
    )
    assert (loaded.spec.reader.name, loaded.spec.reader.spark_format) == ("mysql", False)
    assert loaded.spec.splits_per_channel == 2
    assert dict(loaded.spec.reader.options) == {
        "url": MYSQL,
        "user": "u",
        "password": "p",
        "dbtable": "t",
        "columns": '["id", "name"]',
        "where": "day > '2024-01-01'",
        "partitionColumn": "id",
        "fetchsize": "100",
        "sessionInitStatement": '["set a = 1", "set b = 2"]',
        "tinyInt1IsBit": "false",
        "zeroDates": "null",
        "wideDecimals": "text",
    }


@pytest.mark.parametrize(
    ("names", "expanded"),
    [
        (["t_[0-2]"], ["t_0", "t_1", "t_2"]),
        (["t_[00-02]"], ["t_00", "t_01", "t_02"]),
        (["t_[08-11]x"], ["t_08x", "t_09x", "t_10x", "t_11x"]),
        (["t_[2-0]"], ["t_0", "t_1", "t_2"]),
        (["s.t[1-2], u", "v"], ["s.t1", "s.t2", "u", "v"]),
    ],
)
def test_table_ranges(make_job: Any, names: list[str], expanded: list[str]) -> None:
    loaded = read(make_job, connection=[{"jdbcUrl": [MYSQL], "table": names}])
    assert tables(loaded) == expanded


def test_several_addresses_are_kept_for_the_first_that_answers(make_job: Any) -> None:
    urls = [MYSQL, "jdbc:mysql://other:3306/shop"]
    loaded = read(make_job, connection=[{"jdbcUrl": urls, "table": ["t"]}])
    (part,) = loaded.spec.reader.parts
    assert part.urls == tuple(urls)
    (end,) = loaded.spec.reader.resolve(lambda given: given[1])
    assert end.options["url"] == urls[1]


def test_expressions_are_selected_in_the_source_and_still_split(make_job: Any) -> None:
    loaded = read(
        make_job,
        column=["id", "'x'", "upper(name)", "1", "1", "null", "`order`", "comment"],
        where="a = 1 and b <> 2",
        splitPk="id",
    )
    assert loaded.spec.reader.options["partitionColumn"] == "id"
    assert loaded.spec.reader.options["dbtable"] == (
        "(SELECT id, 'x' AS c1, upper(name) AS c2, 1 AS c3, 1 AS c4, null AS c5, `order`, comment FROM t "
        "WHERE a = 1 and b <> 2) source"
    )
    assert loaded.spec.transformers == ()


def test_a_split_key_that_is_not_among_the_columns_is_read_and_dropped(make_job: Any) -> None:
    import pyarrow as pa

    loaded = read(make_job, column=["name", "1"], splitPk="id")
    assert loaded.spec.reader.options["dbtable"] == "(SELECT name, 1 AS c1, id FROM t) source"
    schema = pa.schema([("name", pa.string()), ("c1", pa.int64()), ("id", pa.int64())])
    assert prepare(loaded.spec.transformers, schema).output_schema.names == ["name", "c1"]


def test_expressions_without_a_split_key_are_one_query(make_job: Any) -> None:
    loaded = read(make_job, column=["id", "upper(name)"])
    assert loaded.spec.reader.options["query"] == "SELECT id, upper(name) AS c1 FROM t"
    assert "dbtable" not in loaded.spec.reader.options


def test_postgresql_folds_names_without_quotes(make_job: Any) -> None:
    loaded = read(
        make_job,
        "postgresqlreader",
        column=["ID", '"Name"'],
        splitPk="ID",
        connection=at("jdbc:postgresql://h/x", "public.t"),
    )
    assert loaded.spec.reader.options["columns"] == '["id", "Name"]'
    assert loaded.spec.reader.options["partitionColumn"] == "id"


def test_a_query_says_all(make_job: Any) -> None:
    loaded = read(
        make_job,
        splitPk="id",
        where="x = 1",
        connection=[{"jdbcUrl": [MYSQL], "querySql": ["select 1;", "select 2"]}],
    )
    assert [part.options for part in loaded.spec.reader.parts] == [
        {"query": "select 1"},
        {"query": "select 2"},
    ]
    assert "partitionColumn" not in loaded.spec.reader.options
    (warning,) = [text for text in loaded.warnings if "querySql says all" in text]
    assert all(f"parameter.{key} (querySql" in warning for key in ("column", "where", "splitPk"))


@pytest.mark.parametrize(
    ("plugin", "url", "driver"),
    [
        ("oraclereader", "jdbc:oracle:thin:@h:1521:x", "oracle.jdbc.OracleDriver"),
        (
            "sqlserverreader",
            "jdbc:sqlserver://h;DatabaseName=x",
            "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        ),
        ("rdbmsreader", "jdbc:db2://h/x", "com.ibm.db2.jcc.DB2Driver"),
        ("rdbmsreader", "jdbc:sybase:Tds:h/x", None),
    ],
)
def test_other_databases_go_through_sparks_jdbc(
    make_job: Any, plugin: str, url: str, driver: str | None
) -> None:
    spec = read(make_job, plugin, connection=at(url), where="a > 1").spec
    assert (spec.reader.name, spec.reader.spark_format) == ("jdbc", True)
    assert spec.reader.options.get("driver") == driver
    assert spec.reader.options["query"] == "SELECT id, name FROM t WHERE a > 1"


def test_a_plugin_for_any_database_knows_ours(make_job: Any) -> None:
    spec = read(make_job, "rdbmsreader", connection=at("jdbc:postgresql://h/x")).spec
    assert (spec.reader.name, spec.reader.spark_format) == ("postgresql", False)


def test_sparks_jdbc_splits_between_bounds_alone(make_job: Any) -> None:
    oracle: dict[str, Any] = {
        "plugin": "oraclereader",
        "connection": at("jdbc:oracle:thin:@h:1521:x"),
        "splitPk": "id",
    }
    loaded = read(make_job, **oracle)
    assert "partitionColumn" not in loaded.spec.reader.options
    assert any("give lowerBound and upperBound" in text for text in loaded.warnings)
    bounded = read(make_job, **oracle, lowerBound=1, upperBound=100).spec.reader.options
    assert {
        key: bounded[key]
        for key in ("partitionColumn", "lowerBound", "upperBound", "numPartitions")
    } == {
        "partitionColumn": "id",
        "lowerBound": "1",
        "upperBound": "100",
        "numPartitions": "4",
    }
    assert bounded["dbtable"] == "(SELECT id, name FROM t) source"


def test_several_session_statements_on_oracle_become_one_block(make_job: Any) -> None:
    spec = read(
        make_job,
        "oraclereader",
        connection=at("jdbc:oracle:thin:@h:1521:x"),
        session=["alter session set a='x'", "alter session set b=1;"],
    ).spec
    assert spec.reader.options["sessionInitStatement"] == (
        "BEGIN EXECUTE IMMEDIATE 'alter session set a=''x'''; EXECUTE IMMEDIATE 'alter session set b=1'; END;"
    )


def test_settings_of_a_jdbc_driver_reach_the_driver_where_there_is_one(make_job: Any) -> None:
    settings = {"oracle.net.CONNECT_TIMEOUT": 5000}
    spark = read(
        make_job, "oraclereader", connection=at("jdbc:oracle:thin:@h:1521:x"), jdbcConfig=settings
    )
    assert spark.spec.reader.options["oracle.net.CONNECT_TIMEOUT"] == "5000"
    ours = read(make_job, jdbcConfig=settings)
    assert "oracle.net.CONNECT_TIMEOUT" not in ours.spec.reader.options
    assert any("jdbcConfig (no JDBC driver takes part)" in text for text in ours.warnings)


def test_a_writer_becomes_our_connectors_options(make_job: Any) -> None:
    loaded = write(
        make_job,
        username="u",
        password="p",
        preSql=["delete from @table", ""],
        postSql="analyze table @table",
        batchSize="512",
    )
    assert dict(loaded.spec.writer.options) == {
        "url": MYSQL,
        "user": "u",
        "password": "p",
        "dbtable": "t",
        "batchSize": "512",
        "createTable": "false",
        "convert": "lenient",
        "ledger": "optional",
        "startSql": '["delete from t"]',
        "postSql": '["analyze table t"]',
    }
    assert loaded.spec.save_mode == "append"


def test_several_tables_have_their_own_statements(make_job: Any) -> None:
    connection = [
        {"jdbcUrl": MYSQL, "table": ["t[0-1]"]},
        {"jdbcUrl": "jdbc:mysql://i/x", "table": "u"},
    ]
    writer = write(make_job, connection=connection, preSql=["delete from @table"]).spec.writer
    assert [(part.urls, json.loads(part.options["startSql"])) for part in writer.parts] == [
        ((MYSQL,), ["delete from t0"]),
        ((MYSQL,), ["delete from t1"]),
        (("jdbc:mysql://i/x",), ["delete from u"]),
    ]


@pytest.mark.parametrize(
    ("given", "mode", "keys"),
    [
        ({"writeMode": "insert"}, None, None),
        ({"writeMode": "INSERT INTO"}, None, None),
        ({"writeMode": "replace"}, None, None),
        ({"writeMode": "update", "keyColumns": ["id"]}, "upsert", '["id"]'),
        ({"writeMode": "replace", "conflictColumn": "id"}, "upsert", '["id"]'),
        ({"writeMode": "update(id, day)"}, None, None),
        ({"writeMode": "insert ignore"}, None, None),
    ],
)
def test_write_modes(
    make_job: Any, given: dict[str, Any], mode: str | None, keys: str | None
) -> None:
    options = write(make_job, **given).spec.writer.options
    assert (options.get("writeMode"), options.get("keyColumns")) == (mode, keys)


@pytest.mark.parametrize(
    ("mode", "duplicates"),
    [
        ("replace", "replace"),
        ("Update (id)", "update"),
        ("insert  ignore into", "ignore"),
        ("insert", None),
    ],
)
def test_mysqls_own_modes_go_by_every_key(make_job: Any, mode: str, duplicates: str | None) -> None:
    assert write(make_job, writeMode=mode).spec.writer.options.get("duplicates") == duplicates


def test_other_databases_go_by_one_key(make_job: Any) -> None:
    postgres = [{"jdbcUrl": "jdbc:postgresql://h/x", "table": ["t"]}]
    named = write(
        make_job, "postgresqlwriter", connection=postgres, writeMode="update(id, day)"
    ).spec.writer
    assert (named.options["writeMode"], named.options["keyColumns"]) == ("upsert", '["id", "day"]')
    ignored = write(
        make_job, "postgresqlwriter", connection=postgres, writeMode="insert ignore"
    ).spec.writer
    assert (ignored.options["writeMode"], ignored.options.get("keyColumns")) == (
        "skipExisting",
        None,
    )


@pytest.mark.parametrize(
    ("query", "options"),
    [
        (
            "useUnicode=true&characterEncoding=utf8&allowMultiQueries=true&noDatetimeStringSync=true",
            {},
        ),
        (
            "yearIsDateType=false&useAffectedRows=true&autoReconnectForPools=true&serverTimezone=GMT%2B8",
            {},
        ),
        ("stringtype=unspecified&reWriteBatchedInserts=true", {}),
        ("useSSL=true&verifyServerCertificate=true", {"sslmode": "verify-ca"}),
        ("verifyServerCertificate=true&useSSL=false", {"sslmode": "disable"}),
        (
            "connectionTimeZone=%2B08:00&forceConnectionTimeZoneToSession=true",
            {"session_time_zone": "+08:00"},
        ),
        ("sessionVariables=sql_mode%3D''", {"session_variables": "sql_mode=''"}),
    ],
)
def test_parameters_of_jdbcs_urls_refuse_no_job(query: str, options: dict[str, str]) -> None:
    reader, warnings = load_reader({"url": f"{MYSQL}?{query}", "dbtable": "t"})
    defaults, _ = load_reader({"url": MYSQL, "dbtable": "t"})
    given = {
        name: value for name, value in reader.options if value != getattr(defaults.options, name)
    }
    assert (given, warnings) == (options, [])


def test_a_postgresql_url_may_carry_mysqls_parameters() -> None:
    query = "useUnicode=true&characterEncoding=utf-8&useSSL=false&prepareThreshold=0&stringtype=unspecified"
    reader: Any = load_reader({"url": f"jdbc:postgresql://h/x?{query}", "dbtable": "t"})[0]
    assert reader.options.address.shown == "postgresql://h:5432/x"
    with pytest.raises(OptionError, match="parameter 'sslmood'"):
        load_reader({"url": "jdbc:postgresql://h/x?sslmood=require", "dbtable": "t"})


def test_what_a_url_says_of_values_holds(make_job: Any) -> None:
    url = f"{MYSQL}?zeroDateTimeBehavior=exception&tinyInt1isBit=true"
    options = read(make_job, connection=[{"jdbcUrl": [url], "table": ["t"]}]).spec.reader.options
    assert "zeroDates" not in options
    assert "tinyInt1IsBit" not in options


def test_the_writers_columns_are_names_by_position(make_job: Any) -> None:
    import pyarrow as pa

    spec = write(make_job, column=["`x`", "y"]).spec
    made = prepare(spec.transformers, pa.schema([("id", pa.int64())]))
    assert made.output_schema.names == ["x", "y"]
    with pytest.raises(
        Exception, match=r"writer\.parameter\.column: column: 2 columns arrive .* names 1"
    ):
        prepare(write(make_job, column=["x"]).spec.transformers, pa.schema([("id", pa.int64())]))
    assert any(
        "matches the columns by name" in text for text in write(make_job, column=["*"]).warnings
    )


@pytest.mark.parametrize(
    "statement", ["truncate table @table", "DELETE FROM dbo.t;", "delete from @table"]
)
def test_sparks_jdbc_writer_empties_the_table_itself(make_job: Any, statement: str) -> None:
    connection = [{"jdbcUrl": "jdbc:sqlserver://h", "table": "dbo.t"}]
    spec = write(make_job, "sqlserverwriter", connection=connection, preSql=[statement]).spec
    assert (spec.save_mode, spec.writer.options["truncate"]) == ("overwrite", "true")


def test_a_table_that_spark_would_drop_to_empty_it_is_refused(make_job: Any) -> None:
    """Spark truncates a table only where its dialect knows what that takes along; it drops, and creates, others."""
    connection = [{"jdbcUrl": "jdbc:dm://h:5236/d", "table": "t"}]
    assert write(make_job, "rdbmswriter", connection=connection).spec.save_mode == "append"
    with pytest.raises(
        JobFileError, match=r"preSql got a list; it takes nothing for jdbc:dm: .*drop it and create"
    ):
        write(make_job, "rdbmswriter", connection=connection, preSql=["delete from @table"])


@pytest.mark.parametrize(
    ("half", "parameter", "message"),
    [
        (
            "r",
            {"connection": [{"jdbcUrl": [MYSQL]}]},
            r"connection\[0\] got neither table nor querySql",
        ),
        (
            "r",
            {"connection": [{"jdbcUrl": MYSQL, "table": "t", "querySql": "select 1"}]},
            r"connection\[0\] got both table and querySql",
        ),
        (
            "r",
            {"connection": [*at(MYSQL), {"jdbcUrl": MYSQL, "querySql": "select 1"}]},
            "connection got table here and querySql there",
        ),
        (
            "r",
            {"connection": at("mongodb://h")},
            r"connection\[0\]\.jdbcUrl got a url of mongodb; it takes jdbc:mysql",
        ),
        ("r", {"connection": at("h:3306")}, "jdbcUrl got"),
        ("r", {"connection": []}, "connection got an empty list"),
        (
            "r",
            {"connection": at(MYSQL, "t[0-99999]")},
            r"table got 't\[0-99999\]'; it takes at most 10000 tables",
        ),
        ("r", {"connection": at(MYSQL, ",")}, "it takes a table"),
        ("r", {"column": []}, "column is missing; mysqlreader takes"),
        ("r", {"column": ["*", "id"]}, r"column got \* beside other columns"),
        (
            "r",
            {"column": ["id", "f("]},
            r"column\[1\] got 'f\('; it takes a column or an expression of mysql",
        ),
        ("r", {"column": ["id", "1; drop table x"]}, r"column\[1\] got"),
        ("r", {"column": ["1"], "where": "a ="}, r"parameter\.where got 'a ='"),
        ("r", {"column": ["1"], "connection": at(MYSQL, "t; drop")}, r"table got 't; drop'"),
        ("r", {"splitPk": "id + 1"}, "splitPk got 'id \\+ 1'; it takes one column's name"),
        ("r", {"splitPk": "id", "lowerBound": 1}, "upperBound is missing"),
        (
            "r",
            {"jdbcConfig": {"a": []}},
            "jdbcConfig got an object; it takes an object of the driver's settings",
        ),
        (
            "w",
            {"writeMode": "merge"},
            "writeMode got 'merge'; it takes insert, insert ignore, replace, update",
        ),
        (
            "w",
            {"column": ["a", "a"]},
            r"column got 'a' twice, at \[0\] and \[1\]; it takes each name once",
        ),
        (
            "w",
            {"column": ["a", "now()"]},
            r"column\[1\] got 'now\(\)'; it takes the name of a target's column",
        ),
        (
            "w",
            {"connection": [{"jdbcUrl": [MYSQL, MYSQL], "table": "t"}]},
            "jdbcUrl got 2 urls; it takes one url",
        ),
        ("w", {"connection": [{"jdbcUrl": MYSQL}]}, r"connection\[0\]\.table is missing"),
        ("w", {"batchSize": 0}, "batchSize got 0"),
        ("w", {"emptyAsNull": "true"}, "emptyAsNull got True"),
        ("w", {"tableRule": "x"}, "tableRule is not supported"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(
    make_job: Any, half: str, parameter: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobFileError, match=message):
        (read if half == "r" else write)(make_job, **parameter)


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ({"writeMode": "replace"}, "writeMode got 'replace'; it takes insert"),
        ({"postSql": ["analyze"]}, "postSql got a list; it takes nothing"),
        ({"preSql": ["delete from t where a = 1"]}, "preSql got a list"),
        ({"preSql": ["truncate table other"]}, "preSql got a list"),
    ],
)
def test_what_sparks_jdbc_writer_cannot_do_is_refused(
    make_job: Any, parameter: dict[str, Any], message: str
) -> None:
    connection = [{"jdbcUrl": "jdbc:oracle:thin:@h:1521:x", "table": "t"}]
    with pytest.raises(JobFileError, match=message):
        write(make_job, "oraclewriter", connection=connection, **parameter)


def test_a_third_party_s_connector_takes_the_plugins_that_it_declares(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Connector(
        "firebird",
        "their.module:Reader",
        "their.module:Writer",
        schemes=("firebird",),
        port=3050,
        dialect="postgres",
        datax=("firebird",),
    )
    connection = [{"jdbcUrl": ["jdbc:firebird://h/shop"], "table": ["t"]}]
    given = {"column": ["id"], "connection": connection}
    with pytest.raises(JobFileError, match="firebirdreader"):
        load_job(make_job("firebirdreader", given))
    monkeypatch.setattr(registry, "_third_parties", lambda: {"firebird": theirs})
    for plugin in ("firebirdreader", "rdbmsreader"):
        end = load_job(make_job(plugin, given)).spec.reader
        assert (end.name, end.spark_format, end.options["dbtable"]) == ("firebird", False, "t")
