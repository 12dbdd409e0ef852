#!/usr/bin/env bash
# Guess: Arrow's reader raises an error for an IPC stream that ends before its end marker, as of a lost connection.
# Happens: cut between two batches, the stream is read without an error, and the rows of the others are missing.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/clickhouse/session.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import io

import pyarrow as pa

sink, ends = io.BytesIO(), []
with pa.ipc.new_stream(sink, pa.schema({"a": pa.int64()})) as writer:
    for value in range(3):
        writer.write_batch(pa.record_batch({"a": [value]}))
        ends.append(sink.tell())
data = sink.getvalue()
for end in (len(data), ends[1]):
    print(pa.ipc.open_stream(data[:end]).read_all()["a"].to_pylist())
EOF
expect <<'EOF'
[0, 1, 2]
[0, 1]
EOF
