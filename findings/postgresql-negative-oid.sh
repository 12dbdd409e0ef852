#!/usr/bin/env bash
# Guess: PostgreSQL refuses a negative number for the unsigned types `oid` and `xid`, as it does any number out of range.
# Happens: the text -1 is stored as 4294967295, without an error or a notice; 4294967296 is refused.
# Version: PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/types/encode.py
. "$(dirname "$0")/common.bash"
pip_install psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    print(connection.execute("SELECT '-1'::oid, '-1'::xid").fetchall())
    try:
        connection.execute("SELECT '4294967296'::oid")
    except psycopg.DataError as error:
        print(error.diag.message_primary)
EOF
expect <<'EOF'
[(4294967295, '4294967295')]
value "4294967296" is out of range for type oid
EOF
