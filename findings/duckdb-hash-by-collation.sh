#!/usr/bin/env bash
# Guess: DuckDB's `hash()` of a text depends on the text's bytes.
# Happens: of a column with a collation, texts that are equal under it have one hash, so a checksum misses the difference.
# Version: duckdb 2.0.1
# Copes: spark_channel/connectors/duckdb/dialect.py
. "$(dirname "$0")/common.bash"
pip_install duckdb==2.0.1
observe python3 - <<'EOF'
import duckdb

connection = duckdb.connect()
connection.execute("CREATE TABLE t (a TEXT, b TEXT COLLATE NOCASE)")
connection.execute("INSERT INTO t VALUES ('A', 'A'), ('a', 'a')")
print(connection.execute("SELECT count(DISTINCT hash(a)), count(DISTINCT hash(b)), count(DISTINCT hash(b::BLOB)) FROM t").fetchall())
EOF
expect <<'EOF'
[(2, 1, 2)]
EOF
