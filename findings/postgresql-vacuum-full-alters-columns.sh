#!/usr/bin/env bash
# Guess: the `xmin` of a column's row in `pg_attribute` changes only when a statement alters the column.
# Happens: VACUUM FULL changes it, too, of a column that was added with a default: it stores the values that were missing.
#   So a new `xmin` does not show that the table's definition has changed.
# Version: PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/read/reader.py
. "$(dirname "$0")/common.bash"
pip_install psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    run = connection.execute
    run("CREATE TABLE t (a int)")
    run("INSERT INTO t VALUES (1)")
    run("ALTER TABLE t ADD b int DEFAULT 5, ADD c int")
    look = "SELECT attname, xmin::text, atthasmissing FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 ORDER BY attnum"
    before = run(look).fetchall()
    run("VACUUM FULL t")
    for old, new in zip(before, run(look).fetchall()):
        print(old[0], "same xmin" if old[1] == new[1] else "new xmin", old[2], new[2])
EOF
expect <<'EOF'
a same xmin False False
b new xmin True False
c same xmin False False
EOF
