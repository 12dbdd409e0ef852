#!/usr/bin/env bash
# Guess: deltalake raises an error for the state of a table at a time before the table existed.
# Happens: it opens the oldest version, whatever the time.
# Version: deltalake 1.6.6
# Copes: spark_channel/connectors/delta/table.py
. "$(dirname "$0")/common.bash"
pip_install deltalake==1.6.6 pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

for value in (1, 2):
    write_deltalake("t", pa.table({"i": [value]}), mode="append")
table = DeltaTable("t")
table.load_as_version("2001-01-01T00:00:00Z")
print(table.version(), table.to_pyarrow_table()["i"].to_pylist())
EOF
expect <<'EOF'
0 [1]
EOF
