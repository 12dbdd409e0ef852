#!/usr/bin/env bash
# Guess: `adbc_ingest` of unsigned 64-bit numbers into PostgreSQL makes a numeric column, or refuses what a bigint lacks.
# Happens: it makes a bigint, and stores 2^63 as -2^63, without an error.
# Version: adbc-driver-postgresql 1.13.0, PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/write/dialect.py
. "$(dirname "$0")/common.bash"
pip_install adbc-driver-postgresql==1.13.0 adbc-driver-manager==1.13.0 pyarrow==26.0.1
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import adbc_driver_postgresql.dbapi as postgresql
import pyarrow as pa

with postgresql.connect(sys.argv[1]) as connection, connection.cursor() as cursor:
    print(cursor.adbc_ingest("t", pa.table({"a": pa.array([2**63], pa.uint64())}), mode="create"))
    cursor.execute("SELECT a, pg_typeof(a)::text AS type FROM t")
    print(cursor.fetch_arrow_table().to_pylist())
EOF
expect <<'EOF'
1
[{'a': -9223372036854775808, 'type': 'bigint'}]
EOF
