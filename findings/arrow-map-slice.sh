#!/usr/bin/env bash
# Guess: `keys` and `items` of a slice of a map array are those of the slice, as `flatten()` of a list array's slice is.
# Happens: they are those of the whole array.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/files/formats/json.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa

maps = pa.array([[("a", 1)], [("b", 2)], [("c", 3)]], pa.map_(pa.string(), pa.int64()))
part = maps.slice(1, 1)
print(part.to_pylist(), part.keys.to_pylist(), part.items.to_pylist())
lists = pa.array([[1], [2], [3]]).slice(1, 1)
print(lists.flatten().to_pylist())
EOF
expect <<'EOF'
[[('b', 2)]] ['a', 'b', 'c'] [1, 2, 3]
[2]
EOF
