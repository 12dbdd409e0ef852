#!/usr/bin/env bash
# Guess: `write_deltalake(mode="overwrite")` and `DeltaTable.delete()` remove every file of the table, whoever wrote it.
# Happens: a file that Spark's log names `s=ü/part-0.parquet` is removed as `s=%C3%BC/part-0.parquet`: its rows stay, for
#   deltalake and for Delta Lake in Spark.
# Version: deltalake 1.6.6
# Copes: spark_channel/connectors/delta/entry.py, spark_channel/connectors/lake/compact.py
. "$(dirname "$0")/common.bash"
pip_install deltalake==1.6.6 pyarrow==26.0.1
observe python3 - <<'EOF'
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

os.makedirs("t/s=ü")
os.makedirs("t/_delta_log")
pq.write_table(pa.table({"id": [1]}), "t/s=ü/part-0.parquet")
fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("id", "long"), ("s", "string"))]
about = {
    "id": "11111111-1111-1111-1111-111111111111",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": fields}),
    "partitionColumns": ["s"],
    "configuration": {},
}
size = os.path.getsize("t/s=ü/part-0.parquet")
add = {"path": "s=ü/part-0.parquet", "partitionValues": {"s": "ü"}, "size": size, "modificationTime": 1, "dataChange": True}
actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": about}, {"add": add}]
with open("t/_delta_log/" + "0" * 20 + ".json", "w", encoding="utf-8") as log:
    log.write("\n".join(json.dumps(action, ensure_ascii=False) for action in actions))
DeltaTable("t").delete()
with open("t/_delta_log/" + "0" * 19 + "1.json", encoding="utf-8") as log:
    removed = [json.loads(line)["remove"]["path"] for line in log if '"remove"' in line]
print(removed)
print(pa.table(DeltaTable("t").scan().read_all()).to_pylist())
EOF
expect <<'EOF'
['s=%C3%BC/part-0.parquet']
[{'id': 1, 's': 'ü'}]
EOF
