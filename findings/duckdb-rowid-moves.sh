#!/usr/bin/env bash
# Guess: a row of a DuckDB table keeps its `rowid` for as long as it is there, as a primary key does.
# Happens: a checkpoint after deletes moves the other rows together, and gives them other numbers: splits by row number
#   that were planned before it miss rows, and read others twice.
# Version: duckdb 2.0.1
# Copes: spark_channel/connectors/duckdb/reader.py
. "$(dirname "$0")/common.bash"
pip_install duckdb==2.0.1
observe python3 - <<'EOF'
import duckdb

connection = duckdb.connect("a.db")
run = connection.execute
run("CREATE TABLE t AS SELECT range AS i FROM range(1000000)")
run("CHECKPOINT")
run("DELETE FROM t WHERE i % 10 <> 0")
for _ in range(2):
    print(run("SELECT rowid FROM t WHERE i = 999990").fetchall())
    run("CHECKPOINT")
EOF
expect <<'EOF'
[(999990,)]
[(99999,)]
EOF
