#!/usr/bin/env bash
# Guess: a commit with the transaction id of an application (`txn`) that the table has already is refused: exactly once.
# Happens: deltalake writes it again, and one with a lower version, too, after which the table names the lower one.
#   Who writes must look before each commit, and commit to exactly the next version.
# Version: deltalake 1.6.6
# Copes: spark_channel/connectors/delta/lake_table.py
. "$(dirname "$0")/common.bash"
pip_install deltalake==1.6.6 pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

for version in (5, 5, 1):
    properties = CommitProperties(app_transactions=[Transaction("app", version)])
    write_deltalake("t", pa.table({"i": [version]}), mode="append", commit_properties=properties)
    table = DeltaTable("t")
    print(table.transaction_version("app"), table.to_pyarrow_table().num_rows)
EOF
expect <<'EOF'
5 1
5 2
1 3
EOF
