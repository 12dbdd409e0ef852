#!/usr/bin/env bash
# Guess: no two transactions have one number (`pg_current_xact_id`), so `pg_xact_status` of a number that a client was
#   given tells how its own transaction ended.
# Happens: a number that was not written to the log before a crash is given again after it, and the status is that of
#   another transaction.
# Version: PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/write/committed_chunk.py
. "$(dirname "$0")/common.bash"
pip_install psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
cat >a.py <<'EOF'
import os
import signal
import sys

import psycopg

if sys.argv[2:]:
    victim = psycopg.connect(sys.argv[1])
    print(victim.execute("SELECT pg_current_xact_id()").fetchone()[0])
    os.kill(int(sys.argv[2]), signal.SIGQUIT)  # without a checkpoint, as after a crash
else:
    with psycopg.connect(sys.argv[1], autocommit=True) as connection:
        number = connection.execute("SELECT pg_current_xact_id()").fetchone()[0]
        print(number, connection.execute("SELECT pg_xact_status(%s::text::xid8)", [number]).fetchone()[0])
EOF
first=$(python3 a.py "$url" "$(head -1 data/postmaster.pid)")
timeout 60 tail --pid="$server" -f /dev/null
postgresql_start
again=$(python3 a.py "$url")
observe echo "crashed $((first - first)), after it $((${again% *} - first)) ${again#* }"
expect <<'EOF'
crashed 0, after it 0 committed
EOF
