#!/usr/bin/env bash
# Guess: pyiceberg reads a NULL as NULL, in a column of any type.
# Happens: a NULL list or map whose elements are structs is read as an empty one; a NULL list of numbers stays NULL.
# Version: pyiceberg 0.12.0
# Copes: spark_channel/connectors/iceberg/data_files.py
. "$(dirname "$0")/common.bash"
pip_install 'pyiceberg[sql-sqlite,pyarrow]==0.12.0' pyarrow==26.0.1
observe python3 - <<'EOF'
import os

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

catalog = SqlCatalog("c", uri="sqlite:///c.db", warehouse=f"file://{os.getcwd()}/warehouse")
catalog.create_namespace("n")
struct = pa.struct({"x": pa.int64()})
schema = pa.schema({"plain": pa.list_(pa.int64()), "list": pa.list_(struct), "map": pa.map_(pa.string(), struct)})
table = catalog.create_table("n.t", schema)
table.append(pa.table({name: [None] for name in schema.names}, schema=schema))
print(table.scan().to_arrow().to_pylist())
EOF
expect <<'EOF'
[{'plain': None, 'list': [], 'map': []}]
EOF
