#!/usr/bin/env bash
# Guess: pyarrow casts whole numbers to a decimal if the numbers that are there have room in it.
# Happens: it refuses any decimal that has no room for the largest number of the type: int64 needs 19 digits, for 1 too.
# Version: pyarrow 26.0.1
# Copes: spark_channel/arrow_schema/casts.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1
observe python3 - <<'EOF'
import pyarrow as pa

for digits in (5, 19):
    try:
        print(digits, pa.array([1, 2]).cast(pa.decimal128(digits, 0)).to_pylist())
    except pa.ArrowInvalid as error:
        print(digits, error)
print(pa.array([1.0, 2.0]).cast(pa.decimal128(5, 0)).to_pylist())
EOF
expect <<'EOF'
5 Precision is not great enough for the result. It should be at least 19
19 [Decimal('1'), Decimal('2')]
[Decimal('1'), Decimal('2')]
EOF
