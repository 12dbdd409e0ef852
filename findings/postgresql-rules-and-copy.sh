#!/usr/bin/env bash
# Guess: an INSERT of two rows that reports two rows has stored them in its table, and COPY does the same as INSERT.
# Happens: a rule that stores them in another table reports its rows as the INSERT's; COPY ignores rules, and stores them
#   in the table itself.
# Version: PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/catalog/tables.py
. "$(dirname "$0")/common.bash"
pip_install psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as connection, connection.cursor() as cursor:
    run = cursor.execute
    run("CREATE TABLE t (i int)")
    run("CREATE TABLE other (i int)")
    run("CREATE RULE r AS ON INSERT TO t DO INSTEAD INSERT INTO other VALUES (new.i)")
    counts = "SELECT (SELECT count(*) FROM t), (SELECT count(*) FROM other)"
    print("INSERT", run("INSERT INTO t VALUES (1), (2)").rowcount, run(counts).fetchone())
    with cursor.copy("COPY t FROM STDIN") as copy:
        copy.write("3\n4\n")
    print("COPY", cursor.rowcount, run(counts).fetchone())
EOF
expect <<'EOF'
INSERT 2 (0, 2)
COPY 2 (2, 2)
EOF
