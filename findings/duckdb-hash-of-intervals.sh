#!/usr/bin/env bash
# Guess: two intervals that DuckDB shows as different texts are different values, with different hashes.
# Happens: 1 month and 30 days are equal, have one hash, and are one group: which of the two is shown is the first one.
# Version: duckdb 2.0.1
# Copes: spark_channel/connectors/duckdb/dialect.py
. "$(dirname "$0")/common.bash"
pip_install duckdb==2.0.1
observe python3 - <<'EOF'
import duckdb

connection = duckdb.connect()
run = lambda sql: connection.execute(sql).fetchall()
print(run("SELECT hash(INTERVAL '1 month') = hash(INTERVAL '30 days'), INTERVAL '1 month' = INTERVAL '30 days'"))
print(run("SELECT CAST(i AS TEXT), count(*) FROM (VALUES (INTERVAL '1 month'), (INTERVAL '30 days')) v(i) GROUP BY i"))
EOF
expect <<'EOF'
[(True, True)]
[('1 month', 2)]
EOF
