#!/usr/bin/env bash
# Guess: `pyarrow.compute.strptime` refuses a day that its month does not have, as the cast of a text to a timestamp does.
# Happens: 31 February becomes 2 March, and second 60 the next minute.
# Version: pyarrow 26.0.1
# Copes: spark_channel/transform/time_patterns.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa
import pyarrow.compute as pc

texts = pa.array(["2024-02-31 00:00:00", "2024-01-01 00:00:60"])
for value in pc.strptime(texts, format="%Y-%m-%d %H:%M:%S", unit="s").to_pylist():
    print("strptime", value)
try:
    texts.cast(pa.timestamp("s"))
except pa.ArrowInvalid as error:
    print("cast", str(error)[:23])
EOF
expect <<'EOF'
strptime 2024-03-02 00:00:00
strptime 2024-01-01 00:01:00
cast Failed to parse string:
EOF
