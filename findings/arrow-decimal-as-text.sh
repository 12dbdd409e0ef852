#!/usr/bin/env bash
# Guess: pyarrow's cast of a decimal to text writes all digits of its scale, as SQL databases do.
# Happens: small values get an exponent, `1.000E-7`, and a zero of 18 places is `0E-18`: readers of plain numbers fail.
# Version: pyarrow 26.0.1
# Copes: spark_channel/connectors/files/formats/text_encode.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
from decimal import Decimal

import pyarrow as pa

for text, scale in (("0.0000001", 10), ("0.00001", 10), ("0", 18)):
    print(pa.array([Decimal(text)], pa.decimal128(38, scale)).cast(pa.string())[0])
EOF
expect <<'EOF'
1.000E-7
0.0000100000
0E-18
EOF
