#!/usr/bin/env bash
# Guess: pyarrow's cast from a list view to a list keeps each row, or raises an error.
# Happens: it raises nothing, and writes one offset too few: the last row has no end, and loses its values.
# Version: pyarrow 26.0.1
# Copes: spark_channel/arrow_schema/casts.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa

views = pa.array([[1, 2], [3], [4, 5, 6]], pa.list_view(pa.int64()))
lists = views.cast(pa.list_(pa.int64()))
print(len(lists), pa.Array.from_buffers(pa.int32(), lists.buffers()[1].size // 4, [None, lists.buffers()[1]]).to_pylist())
try:
    lists.validate()
except pa.ArrowInvalid as error:
    print(error)
EOF
expect <<'EOF'
3 [0, 2, 3]
Offsets buffer size (bytes): 12 isn't large enough for length: 3 and offset: 0
EOF
