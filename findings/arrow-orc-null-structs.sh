#!/usr/bin/env bash
# Guess: pyarrow's ORC writer writes the values of a struct column that holds NULL, also of a slice of it.
# Happens: of a slice it takes the NULLs of the whole array's start, and of a struct with NULL in another struct it
#   writes the values behind NULL, too: rows behind them are read with the values of others, without an error.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/files/formats/orc.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa
from pyarrow import orc

point = pa.array([None, {"x": 1}, None, {"x": 3}], pa.struct({"x": pa.int32()}))
for points in point, point.slice(1), pa.StructArray.from_arrays([point], ["p"]):
    orc.write_table(pa.table({"s": points}), "a.orc")
    print(points.to_pylist(), orc.read_table("a.orc")["s"].to_pylist(), sep="\n")
EOF
expect <<'EOF'
[None, {'x': 1}, None, {'x': 3}]
[None, {'x': 1}, None, {'x': 3}]
[{'x': 1}, None, {'x': 3}]
[None, {'x': 1}, None]
[{'p': None}, {'p': {'x': 1}}, {'p': None}, {'p': {'x': 3}}]
[{'p': None}, {'p': {'x': 0}}, {'p': None}, {'p': {'x': 1}}]
EOF
