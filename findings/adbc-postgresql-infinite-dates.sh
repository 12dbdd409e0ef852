#!/usr/bin/env bash
# Guess: ADBC's PostgreSQL driver hands `infinity` of a date to Arrow as NULL or the largest date, or refuses it.
# Happens: the number of its days is moved from 2000 to 1970 and wraps around: `infinity` comes before all other dates.
# Version: adbc-driver-postgresql 1.13.0, PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/types/texts.py
. "$(dirname "$0")/common.bash"
pip_install adbc-driver-postgresql==1.13.0 adbc-driver-manager==1.13.0 pyarrow==26.0.1
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import adbc_driver_postgresql.dbapi as postgresql
import pyarrow as pa

with postgresql.connect(sys.argv[1]) as connection, connection.cursor() as cursor:
    cursor.execute("SELECT 'infinity'::date AS a, '-infinity'::date AS b, '1970-01-02'::date AS c")
    table = cursor.fetch_arrow_table()
    print(table.schema.types[0], table.cast(pa.schema({name: pa.int32() for name in "abc"})).to_pylist())
EOF
expect <<'EOF'
date32[day] [{'a': -2147472692, 'b': -2147472691, 'c': 1}]
EOF
