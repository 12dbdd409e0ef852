#!/usr/bin/env bash
# Guess: an append to an Iceberg table costs the same with ten old snapshots and with ten thousand, but for one read and one write
#   of the metadata file, which lists them.
# Happens: a transaction copies the whole metadata, each old snapshot of it, whenever it looks at its table: 23 copies of each in
#   one append. From a thousand snapshots on that is nearly all that an append costs.
# Version: pyiceberg 0.12.0
# Copes: spark_channel/connectors/iceberg/lake_table.py
. "$(dirname "$0")/common.bash"
pip_install 'pyiceberg[sql-sqlite]==0.12.0' pyarrow==26.0.1
observe python3 - "$work" <<'EOF'
import sys

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.snapshots import Snapshot

copied = []


def counted(snapshot, memo=None, copy=Snapshot.__deepcopy__):
    copied.append(snapshot.snapshot_id)
    return copy(snapshot, memo)


catalog = SqlCatalog("c", uri=f"sqlite:///{sys.argv[1]}/catalog.db", warehouse=f"file://{sys.argv[1]}/w")
catalog.create_namespace("n")
table = catalog.create_table("n.t", pa.schema([("id", pa.int64())]))
for number in range(20):
    table.append(pa.table({"id": [number]}))
Snapshot.__deepcopy__ = counted
for _ in range(2):
    old = len(table.metadata.snapshots)
    table.append(pa.table({"id": [0]}))
    first = copied.count(table.metadata.snapshots[0].snapshot_id)
    print(f"{old} old snapshots: the oldest was copied {first} times, {len(copied)} copies in all")
    copied.clear()
EOF
expect <<'EOF'
20 old snapshots: the oldest was copied 23 times, 462 copies in all
21 old snapshots: the oldest was copied 23 times, 485 copies in all
EOF
