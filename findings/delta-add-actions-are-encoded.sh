#!/usr/bin/env bash
# Guess: `DeltaTable.get_add_actions()` names data files as they are called on the disk.
# Happens: it gives the log's uris: a partition `a b` is in the folder `k=a%20b`, and in the actions `k=a%2520b`.
# Version: deltalake 1.6.6
# Copes: spark_channel/connectors/delta/reader.py
. "$(dirname "$0")/common.bash"
pip_install deltalake==1.6.6 pyarrow==26.0.1
observe python3 - <<'EOF'
import os

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

write_deltalake("t", pa.table({"i": [1], "k": ["a b"]}), partition_by=["k"])
print(*[name for name in os.listdir("t") if name.startswith("k=")])
table = DeltaTable("t")
print(pa.table(table.get_add_actions(flatten=True))["path"][0].as_py().split("/")[0])
print(table.file_uris()[0].split("/")[-2])
EOF
expect <<'EOF'
k=a%20b
k=a%2520b
k=a%20b
EOF
