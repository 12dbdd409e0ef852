#!/usr/bin/env bash
# Guess: ADBC's SQLite driver types a column by its declaration, or widens its type where a later value does not fit.
# Happens: the first batch (1024 rows) decides: a REAL in it makes all of it doubles, and one behind it ends the read.
# Version: adbc-driver-sqlite 1.13.0
# Copes: spark_channel/connectors/adbc/session.py
. "$(dirname "$0")/common.bash"
pip_install adbc-driver-sqlite==1.13.0 adbc-driver-manager==1.13.0 pyarrow==26.0.1
observe python3 - <<'EOF'
import adbc_driver_sqlite.dbapi as sqlite

for rows in (1023, 1024):
    with sqlite.connect(":memory:") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a NUMERIC)")
        cursor.execute(f"WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {rows}) INSERT INTO t SELECT i FROM n")
        cursor.execute("INSERT INTO t VALUES (2.5)")
        cursor.execute("SELECT a FROM t")
        try:
            print(rows, cursor.fetch_arrow_table().schema.field("a").type)
        except Exception as error:
            print(rows, error)
EOF
expect <<'EOF'
1023 double
1024 [SQLite] Type mismatch in column 0: expected INT64 but got DOUBLE
EOF
