"""What a look at a query leaves on the server, and what it says of a query that it cannot describe."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from spark_channel.connectors.postgresql.options import PostgresReadOptions
from spark_channel.connectors.postgresql.session import PgPlanSession
from spark_channel.errors import SourceError
from tests.servers.postgres import PostgresServer

_LOOK = "SELECT * FROM ({query}) AS source LIMIT 0"
_TYPE_WITHOUT_BINARY_FORM = (
    "CREATE TYPE odd; "
    "CREATE FUNCTION odd_in(cstring) RETURNS odd LANGUAGE internal IMMUTABLE STRICT AS 'textin'; "
    "CREATE FUNCTION odd_out(odd) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'; "
    "CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out)"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer.create(shared_preload_libraries="pg_stat_statements")
    try:
        server.psql("CREATE EXTENSION pg_stat_statements")
        yield server
    finally:
        server.close()


def _session(server: PostgresServer, kind: type[PgPlanSession] = PgPlanSession) -> PgPlanSession:
    options = PostgresReadOptions.parse({**server.login, "dbtable": "t"})[0]
    return kind(options, failure=SourceError, purpose="look")


def test_looks_at_queries_that_differ_in_a_literal_are_one_statement_of_the_servers_statistics(
    server: PostgresServer,
) -> None:
    server.psql(
        f"{_TYPE_WITHOUT_BINARY_FORM}; CREATE TABLE t (id int, price numeric(5, 2), odd odd); "
        "INSERT INTO t VALUES (1, 2.5, 'x'), (901, 2.5, 'x')"
    )
    with _session(server) as session:
        server.psql("SELECT pg_stat_statements_reset()")
        for edge in range(900, 910):
            columns = session.result_columns(
                _LOOK.format(query=f"SELECT * FROM t WHERE id > {edge}")
            )
            assert [(column.name, column.type, column.typmod) for column in columns] == [
                ("id", "int4", -1),
                ("price", "numeric", (5 << 16 | 2) + 4),
                ("odd", "odd", -1),
            ]
    ((calls, text),) = server.rows(
        "SELECT calls, query FROM pg_stat_statements WHERE query LIKE '%FROM t WHERE%'"
    )
    assert calls == "10"
    assert "> $1" in text


def test_a_text_of_several_statements_is_refused_before_any_of_them_runs(
    server: PostgresServer,
) -> None:
    server.psql("CREATE TABLE kept ()")
    with (
        _session(server) as session,
        pytest.raises(SourceError, match="cannot insert multiple commands"),
    ):
        session.result_columns(
            _LOOK.format(query="SELECT 1) AS a; DROP TABLE kept; SELECT * FROM (SELECT 1")
        )
    assert server.psql("SELECT to_regclass('kept')") == "kept"


class _DropsFirst(PgPlanSession):
    """Between the look at a query and the one at its types another session drops one of these."""

    server: PostgresServer

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if "pg_type" in sql:
            self.server.psql("DROP TYPE mood")
        return super().rows(sql, parameters)


def test_a_type_that_is_dropped_between_two_looks_is_named_with_its_column(
    server: PostgresServer,
) -> None:
    server.psql("CREATE TYPE mood AS ENUM ('fine')")
    _DropsFirst.server = server
    with (
        _session(server, _DropsFirst) as session,
        pytest.raises(SourceError, match=r"dropped the type of column 'today' \(OID \d+\)"),
    ):
        session.result_columns(_LOOK.format(query="SELECT 1 AS n, 'fine'::mood AS today"))
