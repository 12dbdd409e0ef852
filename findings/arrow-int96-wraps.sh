#!/usr/bin/env bash
# Guess: a Parquet file with timestamps of 96 bits, as Spark and Impala write them, keeps the years 1 to 9999 when pyarrow
#   reads it, or raises an error.
# Happens: the timestamps are read as nanoseconds in 64 bits, and wrap around: year 1 becomes 1754, year 9999 becomes 1815.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/files/formats/parquet.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import datetime as dt

import pyarrow as pa
import pyarrow.parquet as pq

times = pa.array([dt.datetime(1, 1, 1), dt.datetime(9999, 1, 1)], pa.timestamp("us"))
pq.write_table(pa.table({"t": times}), "t.parquet", use_deprecated_int96_timestamps=True)
found = pq.read_table("t.parquet")["t"]
print(found.type, [value.year for value in found.cast(pa.timestamp("us"), safe=False).to_pylist()])
found = pq.read_table("t.parquet", coerce_int96_timestamp_unit="us")["t"]
print(found.type, [value.year for value in found.to_pylist()])
EOF
expect <<'EOF'
timestamp[ns] [1754, 1815]
timestamp[us] [1, 9999]
EOF
