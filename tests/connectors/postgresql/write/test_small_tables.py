"""A table gets the same columns, rows and report in a group as alone, whatever its target is."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

import spark_channel
from spark_channel.connectors.base.small_tables import SmallTable
from spark_channel.connectors.postgresql.write.small_tables import PostgresTogether
from spark_channel.replication import ReplicationReport
from tests.servers.postgres import PostgresServer

_CASES: dict[str, tuple[str, str]] = {
    "same": ("(id int, t text); INSERT INTO {} VALUES (1, 'a'), (2, NULL)", "(id int, t text)"),
    "made": (
        """(a uuid, b jsonb, c int[], d numeric(9,3), e varchar(5), f time, g bytea, h date, i interval, j char(4),
        k timestamptz, l timestamp, m real, n float8, o bool, p smallint, q bigint, r inet, s json, u numeric);
        INSERT INTO {} VALUES (gen_random_uuid(), '{{}}', '{{1}}', 1.5, 'x', '10:00', '\\x00', '2026-01-01', '1 mon',
        'c', '2026-01-01 00:00:00+02', '2026-01-01', 1.5, 2.5, true, 1, 2, '10.0.0.1', '[1]', 1e20)""",
        "",
    ),
    "plain": (
        """(a text, b numeric(9,3), c bytea, d date, e timestamptz, f timestamp, g real, h float8, i bool, j int);
        INSERT INTO {} VALUES ('x', 1.5, '', '2026-01-01', '2026-01-01 00:00+02', '2026-01-01', 1, 2, true, 3)""",
        "",
    ),
    "order": ("(a int, b text); INSERT INTO {} VALUES (1, 'x')", "(b text, a int)"),
    "wider": ("(a int, b smallint); INSERT INTO {} VALUES (1, 2)", "(a bigint, b numeric)"),
    "narrower": ("(a bigint); INSERT INTO {} VALUES (5)", "(a int)"),
    "too_large": ("(a bigint); INSERT INTO {} VALUES (5000000000)", "(a int)"),
    "rounded": ("(a numeric(10,4)); INSERT INTO {} VALUES (1.2345)", "(a numeric(5,2))"),
    "float": ("(a float8); INSERT INTO {} VALUES (0.1)", "(a real)"),
    "short": ("(a text); INSERT INTO {} VALUES ('abcdef')", "(a varchar(3))"),
    "padded": ("(a text); INSERT INTO {} VALUES ('a  ')", "(a char(2))"),
    "other": ("(a text); INSERT INTO {} VALUES ('1')", "(a int)"),
    "as_text": ("(a int); INSERT INTO {} VALUES (1)", "(a text)"),
    "zone": ("(a timestamptz); INSERT INTO {} VALUES ('2026-06-01 10:00+02')", "(a timestamp)"),
    "default": ("(a int); INSERT INTO {} VALUES (1)", "(a int, b text DEFAULT 'd')"),
    "not_null": ("(a int); INSERT INTO {} VALUES (1)", "(a int, b text NOT NULL)"),
    "null": ("(a int); INSERT INTO {} VALUES (NULL)", "(a int NOT NULL)"),
    "fewer": ("(a int, b text); INSERT INTO {} VALUES (1, 'b')", "(a int)"),
    "generated": (
        "(a int, b int); INSERT INTO {} VALUES (1, 2)",
        "(a int, b int GENERATED ALWAYS AS (a * 2) STORED)",
    ),
    "from_generated": (
        "(a int, b int GENERATED ALWAYS AS (a * 2) STORED); INSERT INTO {} (a) VALUES (1)",
        "(a int, b int)",
    ),
    "identity": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int GENERATED ALWAYS AS IDENTITY)",
    ),
    "checked": ("(a int); INSERT INTO {} VALUES (7)", "(a int CHECK (a < 5))"),
    "unique": ("(a int); INSERT INTO {} VALUES (7), (7)", "(a int PRIMARY KEY)"),
    "unlogged": ("(a int); INSERT INTO {} VALUES (7)", "UNLOGGED (a int)"),
    "partitioned": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int) PARTITION BY LIST (a); CREATE TABLE {}_p PARTITION OF {} DEFAULT",
    ),
    "parent": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int); CREATE TABLE {}_c () INHERITS ({}); INSERT INTO {}_c VALUES (1)",
    ),
    "referenced": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int PRIMARY KEY); CREATE TABLE {}_c (a int REFERENCES {})",
    ),
    "references": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int); CREATE TABLE {}_c (a int PRIMARY KEY); ALTER TABLE {} ADD FOREIGN KEY (a) REFERENCES {}_c",
    ),
    "deferred": (
        "(a int); INSERT INTO {} VALUES (7)",
        """(a int); CREATE TABLE {}_c (a int PRIMARY KEY);
        ALTER TABLE {} ADD FOREIGN KEY (a) REFERENCES {}_c DEFERRABLE INITIALLY DEFERRED""",
    ),
    "skips": (
        "(a int); INSERT INTO {} VALUES (7)",
        """(a int); CREATE FUNCTION {}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
        CREATE TRIGGER no BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION {}_f()""",
    ),
    "changes": (
        "(a int); INSERT INTO {} VALUES (7)",
        """(a int); CREATE FUNCTION {}_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.a = 8; RETURN NEW; END';
        CREATE TRIGGER other BEFORE INSERT ON {} FOR EACH ROW EXECUTE FUNCTION {}_f()""",
    ),
    "ruled": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int); CREATE RULE no AS ON INSERT TO {} DO INSTEAD NOTHING",
    ),
    "domain": (
        "(a int); INSERT INTO {} VALUES (7)",
        "(a int); CREATE DOMAIN {}_d AS int CHECK (VALUE < 5); ALTER TABLE {} ALTER COLUMN a TYPE {}_d",
    ),
    "arrays": ("(a int[]); INSERT INTO {} VALUES ('{{{{1,2}},{{3,4}}}}')", ""),
    "infinite": ("(a date, b timestamptz); INSERT INTO {} VALUES ('infinity', '-infinity')", ""),
    "special": ("(a numeric, b float8); INSERT INTO {} VALUES ('NaN', 'Infinity')", ""),
    "empty": ("(a int)", ""),
    "no_columns": ("()", ""),
    "Mixed.Case": ('("the id" int, "a""b" text); INSERT INTO {} VALUES (1, \'x\')', ""),
    'quo"ted': ("(a int); INSERT INTO {} VALUES (1)", "(a int)"),
    "upper": ('("A" int, "a" int); INSERT INTO {} VALUES (1, 2)', '("a" int, "A" int)'),
    "folded": ('("A" int); INSERT INTO {} VALUES (1)', "(a int)"),
}
"""By the table's name: its source, and its target; "" = none. {} is the table."""


@pytest.fixture
def cases(postgres_server: PostgresServer) -> Any:
    gone = "".join(
        f"DROP SCHEMA IF EXISTS {name} CASCADE;" for name in ("alike", "alike_1", "alike_n")
    )
    made = ["CREATE SCHEMA alike; CREATE SCHEMA alike_1; CREATE SCHEMA alike_n"]
    for name, (source, target) in _CASES.items():
        quoted = name.replace('"', '""')
        made.append(f'CREATE TABLE alike."{quoted}" ' + source.format(f'alike."{quoted}"'))
        for schema in ("alike_1", "alike_n"):
            if target:
                unlogged = "UNLOGGED " if target.startswith("UNLOGGED") else ""
                body = target.removeprefix("UNLOGGED").replace("{}", f"{schema}.{name}")
                body = body if "{}" in target else target.removeprefix("UNLOGGED")
                made.append(f'CREATE {unlogged}TABLE {schema}."{quoted}" {body}')
    postgres_server.psql(f"{gone} {'; '.join(made)}; ANALYZE")
    yield postgres_server
    postgres_server.psql(gone)


def _run(server: PostgresServer, schema: str, **options: Any) -> ReplicationReport:
    return spark_channel.replicate(
        None,
        {
            "source": server.login,
            "target": {**server.login, "currentSchema": schema},
            "defaults": {"object": "{table}", **options},
            "streams": {"alike.*": {}},
            "parallel": 12,
        },
    )


def _state(server: PostgresServer, schema: str, report: ReplicationReport) -> dict[str, Any]:
    found = {}
    for each in report.tables:
        name = each.stream.removeprefix("alike.")
        table = f'{schema}."{name.strip(chr(34)).replace(chr(34) * 2, chr(34)).replace(chr(34), chr(34) * 2)}"'
        there = server.psql(f"SELECT to_regclass('{table}') IS NOT NULL") == "t"
        columns = rows = ""
        if there:
            columns = server.psql(
                "SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod) || attnotnull, ', ' "
                f"ORDER BY attnum) FROM pg_attribute "
                f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped"
            )
            rows = server.psql(f"SELECT string_agg(x::text, ';' ORDER BY x::text) FROM {table} x")
        # PostgreSQL says where a row stood when it was refused: the staging of a copy has another name each time.
        why = re.sub(r"\. CONTEXT: .*? column \w+", "", (each.why or "").replace(schema, "S"))
        found[name] = (
            each.state,
            each.rows,
            each.error_type,
            why,
            columns.replace(schema, "S"),
            rows,
        )
    return found


def test_a_table_in_a_group_is_as_one_that_is_copied_alone(
    cases: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: set[str] = set()
    publish = PostgresTogether.publish

    def noted(self: PostgresTogether, tables: Sequence[SmallTable]) -> None:
        publish(self, tables)
        joined.update(each.stream.rpartition("/")[2] for each in tables if each.is_new)

    monkeypatch.setattr(PostgresTogether, "publish", noted)
    for _ in range(2):
        alone = _state(
            cases, "alike_1", _run(cases, "alike_1", target_options={"batchSize": "1000"})
        )
        assert joined == set()
        together = _state(cases, "alike_n", _run(cases, "alike_n"))
        assert together == alone
        assert {"alike.same", "alike.plain", "alike.order", "alike.empty"} <= joined
        joined.clear()
