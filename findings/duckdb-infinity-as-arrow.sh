#!/usr/bin/env bash
# Guess: DuckDB hands its dates and timestamps to Arrow as dates and timestamps, or refuses those that Arrow lacks.
# Happens: `infinity` arrives as the largest number of the type, and minus infinity as its negative: valid Arrow values of
#   the years 5 881 580 and 294 247, which no reader tells from others.
# Version: duckdb 2.0.1, pyarrow 26.0.1
# Copes: spark_channel/connectors/duckdb/dialect.py
. "$(dirname "$0")/common.bash"
pip_install duckdb==2.0.1 pyarrow==26.0.1
observe python3 - <<'EOF'
import duckdb
import pyarrow as pa

table = duckdb.connect().execute("SELECT 'infinity'::DATE d, '-infinity'::DATE e, 'infinity'::TIMESTAMP t").to_arrow_table()
table.validate(full=True)
print(*table.schema.types)
print(table.cast(pa.schema({"d": pa.int32(), "e": pa.int32(), "t": pa.int64()})).to_pylist())
EOF
expect <<'EOF'
date32[day] date32[day] timestamp[us]
[{'d': 2147483647, 'e': -2147483647, 't': 9223372036854775807}]
EOF
