#!/usr/bin/env bash
# Guess: a NULL for a column that holds none is an error, as in other databases with NOT NULL.
# Happens: ClickHouse stores the column's default, such as 0 or 1970-01-01, in its place: `input_format_null_as_default` is on.
# Version: chdb 4.4.0 (ClickHouse's engine 26.9)
# Copes: spark_channel/connectors/clickhouse/reader.py
. "$(dirname "$0")/common.bash"
pip_install chdb==4.4.0
observe python3 - <<'EOF'
from chdb.session import Session

session = Session()
session.query("CREATE TABLE t (n Int32, d Date, s String) ENGINE = Memory")
session.query("INSERT INTO t FORMAT JSONEachRow {\"n\": null, \"d\": null, \"s\": null}")
print(session.query("SELECT n, d, length(s) FROM t", "TSV"), end="")
try:
    session.query("SET input_format_null_as_default = 0")
    session.query("INSERT INTO t FORMAT JSONEachRow {\"n\": null, \"d\": null, \"s\": null}")
    print("no error")
except RuntimeError as error:
    print(str(error).split(".")[0])
EOF
expect <<'EOF'
0	1970-01-01	0
Code: 117
EOF
