#!/usr/bin/env bash
# Guess: deltalake notes the table feature `timestampNtz` for a new column of timestamps without a zone, wherever in it
#   they are; or it writes nothing.
# Happens: it does in a struct or a list, and not inside of a map. `DeltaTable.create` writes version 0 of such a table,
#   and raises an error; nobody can open the table then, also not to repair it.
# Version: deltalake 1.6.6
# Copes: spark_channel/connectors/delta/columns.py
. "$(dirname "$0")/common.bash"
pip_install deltalake==1.6.6 pyarrow==26.0.1
observe python3 - <<'EOF'
import os

import pyarrow as pa
from deltalake import DeltaTable, Schema

local = pa.timestamp("us")
kinds = {"list": pa.list_(local), "struct": pa.struct({"x": local}), "map": pa.map_(pa.string(), local)}
for name, kind in kinds.items():
    for step in (lambda: DeltaTable.create(name, Schema.from_arrow(pa.schema({"c": kind}))), lambda: DeltaTable(name)):
        try:
            print(name, step().protocol().reader_features)
        except Exception as error:
            print(name, str(error)[:57], os.listdir(f"{name}/_delta_log"))
EOF
expect <<'EOF'
list ['timestampNtz']
list ['timestampNtz']
struct ['timestampNtz']
struct ['timestampNtz']
map Kernel error: Unsupported: Table contains TIMESTAMP_NTZ c ['00000000000000000000.json']
map Kernel error: Unsupported: Table contains TIMESTAMP_NTZ c ['00000000000000000000.json']
EOF
