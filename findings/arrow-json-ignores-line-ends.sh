#!/usr/bin/env bash
# Guess: pyarrow's reader of JSON lines makes a row of each line, and refuses a line that is not a whole object.
# Happens: it ignores line ends: two objects in one line are two rows, and an object over two lines is one. So its rows
#   cannot be counted by lines, and an error's row number is no line number.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/files/formats/json_lines.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import io

from pyarrow import json

for data in (b'{"a": 1}{"a": 2}\n', b'{"a":\n3}\n'):
    print(data.count(b"\n"), json.read_json(io.BytesIO(data))["a"].to_pylist())
EOF
expect <<'EOF'
1 [1, 2]
2 [3]
EOF
