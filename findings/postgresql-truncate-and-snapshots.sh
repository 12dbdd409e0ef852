#!/usr/bin/env bash
# Guess: a transaction at REPEATABLE READ sees the rows that were there when its snapshot was made, whatever others do.
# Happens: TRUNCATE is not bound by snapshots: a table that the transaction has not read yet is empty from then on.
# Version: PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/write/dialect.py
# Source: https://www.postgresql.org/docs/18/mvcc-caveats.html
. "$(dirname "$0")/common.bash"
pip_install psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as writer, psycopg.connect(sys.argv[1]) as reader:
    writer.execute("CREATE TABLE t AS SELECT generate_series(1, 3) AS i")
    writer.execute("CREATE TABLE u AS SELECT generate_series(1, 3) AS i")
    reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    reader.execute("SELECT 1")
    writer.execute("TRUNCATE t")
    writer.execute("DELETE FROM u")
    print(reader.execute("SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM u)").fetchall())
EOF
expect <<'EOF'
[(0, 3)]
EOF
