"""A table that the target cannot hold is refused by the plan, and not by the server when rows have moved."""

import pyarrow as pa
import pytest

from spark_channel.connectors import WriteContext, load_writer
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect
from spark_channel.connectors.postgresql.write.dialect import PostgresWriteDialect
from spark_channel.errors import SchemaError
from tests.servers.mariadb import MariadbServer
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.full


def _columns(count: int) -> pa.Schema:
    return pa.schema([(f"c{number}", pa.int32()) for number in range(count)])


def _prepare(options: dict[str, object], count: int) -> None:
    writer, _ = load_writer({**options, "createTable": "true"})
    plan = writer.prepare(WriteContext(f"columns-{count}", commit="job"), _columns(count))
    writer.abort(plan, None)


def test_mariadb_refuses_one_column_more_than_the_plan(mariadb_server: MariadbServer) -> None:
    most = MysqlWriteDialect.most_columns
    assert most is not None
    server = mariadb_server
    server.sql("DROP DATABASE IF EXISTS wide; CREATE DATABASE wide")
    try:
        columns = [f"c{number} INT" for number in range(most + 1)]
        server.sql(f"CREATE TABLE here ({', '.join(columns[:most])})", database="wide")
        with pytest.raises(Exception, match="Too many columns"):
            server.sql(f"CREATE TABLE more ({', '.join(columns)})", database="wide")
        options: dict[str, object] = {
            "url": f"mysql://127.0.0.1:{server.port}/wide",
            "user": server.user,
            "password": server.password,
            "dbtable": "t",
        }
        with pytest.raises(SchemaError, match="at most 1017 columns, and the rows have 1018"):
            _prepare(options, most + 1)
        _prepare(options, most)
    finally:
        server.sql("DROP DATABASE wide")


def test_postgresql_refuses_one_column_more_than_the_plan(postgres_server: PostgresServer) -> None:
    most = PostgresWriteDialect.most_columns
    assert most is not None
    server = postgres_server
    server.psql("CREATE SCHEMA wide")
    try:
        columns = [f"c{number} int" for number in range(most + 1)]
        server.psql(f"CREATE TABLE wide.here ({', '.join(columns[:most])})")
        with pytest.raises(Exception, match="at most 1600 columns"):
            server.psql(f"CREATE TABLE wide.more ({', '.join(columns)})")
        options: dict[str, object] = {**server.login, "currentschema": "wide", "dbtable": "t"}
        with pytest.raises(SchemaError, match="at most 1600 columns, and the rows have 1601"):
            _prepare(options, most + 1)
        _prepare(options, most)
    finally:
        server.psql("SET client_min_messages = error; DROP SCHEMA wide CASCADE")
