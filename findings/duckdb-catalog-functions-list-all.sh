#!/usr/bin/env bash
# Guess: `duckdb_tables()`, `duckdb_columns()` and `duckdb_constraints()` make rows of the tables alone that WHERE names.
# Happens: the first two do where a condition is of the name alone, not where schema and name are compared as a pair; the
#   last makes those of all tables whatever the condition is. (1.4.0: all three do.)
# Version: duckdb 2.0.1
# Copes: spark_channel/connectors/duckdb/dialect.py
. "$(dirname "$0")/common.bash"
pip_install duckdb==2.0.1
observe python3 - <<'EOF'
import json

import duckdb

connection = duckdb.connect()
run = connection.execute
run("; ".join(f"CREATE TABLE t{n} (a INT PRIMARY KEY)" for n in range(200)))


def listed(node):
    """How many rows the catalog's function made before another operator filtered them, by the profile."""
    if node["type"] == "TABLE_SCAN":
        return "all" if node["intermediate_rows"] >= 200 else node["intermediate_rows"]
    return listed(node["children"][0])


for function in ("duckdb_tables", "duckdb_columns", "duckdb_constraints"):
    for condition in (
        "table_name = 't1'",
        "table_name IN ('t1', 't2')",
        "(table_name, schema_name) IN (('t1', 'main'), ('t2', 'main'))",
        "lower(table_name) = 't1'",
    ):
        run("PRAGMA enable_profiling='no_output'; PRAGMA profiling_mode='detailed'")
        run(f"SELECT * FROM {function}() WHERE schema_name = 'main' AND {condition}").fetchall()
        (profile,) = json.loads(connection.get_profiling_information())["operator"]
        run("PRAGMA disable_profiling")
        print(function, listed(profile), condition)
EOF
expect <<'EOF'
duckdb_tables 1 table_name = 't1'
duckdb_tables 2 table_name IN ('t1', 't2')
duckdb_tables all (table_name, schema_name) IN (('t1', 'main'), ('t2', 'main'))
duckdb_tables 1 lower(table_name) = 't1'
duckdb_columns 1 table_name = 't1'
duckdb_columns 2 table_name IN ('t1', 't2')
duckdb_columns all (table_name, schema_name) IN (('t1', 'main'), ('t2', 'main'))
duckdb_columns 1 lower(table_name) = 't1'
duckdb_constraints all table_name = 't1'
duckdb_constraints all table_name IN ('t1', 't2')
duckdb_constraints all (table_name, schema_name) IN (('t1', 'main'), ('t2', 'main'))
duckdb_constraints all lower(table_name) = 't1'
EOF
