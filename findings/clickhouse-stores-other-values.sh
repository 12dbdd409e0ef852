#!/usr/bin/env bash
# Guess: ClickHouse refuses a value that its column's type cannot hold, in an INSERT of values or of Arrow.
# Happens: 300 in an Int8 becomes 44, and a day beyond the type the nearest that it has, without an error or a warning.
# Version: chdb 4.4.0 (ClickHouse's engine 26.9)
# Copes: spark_channel/connectors/clickhouse/writer.py
. "$(dirname "$0")/common.bash"
pip_install chdb==4.4.0
observe python3 - <<'EOF'
from chdb.session import Session

session = Session()
session.query("CREATE TABLE t (n Int8, d Date, s DateTime('UTC'), m Decimal(9, 2)) ENGINE = Memory")
session.query("INSERT INTO t VALUES (300, '2200-01-01', '1900-01-01 00:00:00', '1.239')")
print(session.query("SELECT * FROM t", "TSV"), end="")
EOF
expect <<'EOF'
44	2149-06-06	1970-01-01 00:00:00	1.23
EOF
