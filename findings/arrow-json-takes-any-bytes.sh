#!/usr/bin/env bash
# Guess: pyarrow's JSON reader refuses bytes that are not UTF-8, or makes a column of bytes of them as its CSV reader does.
# Happens: it makes a string array that is not valid; an error comes later, where the text is used, or never.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/files/formats/json_reader.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import io

import pyarrow as pa
from pyarrow import csv, json

found = json.read_json(io.BytesIO(b'{"a": "\xe9t\xe9"}\n'))["a"]
print("json", found.type, found.cast(pa.binary()).to_pylist())
try:
    found.validate(full=True)
except pa.ArrowInvalid as error:
    print("json", type(error).__name__)
print("csv", csv.read_csv(io.BytesIO(b"a\n\xe9t\xe9\n"))["a"].type)
EOF
expect <<'EOF'
json string [b'\xe9t\xe9']
json ArrowInvalid
csv binary
EOF
