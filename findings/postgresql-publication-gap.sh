#!/usr/bin/env bash
# Guess: a table that left a publication and came back has all of its changes in the slot's log: they are decoded late,
#   with the publication as it is by then. Or the reader is told of the gap.
# Happens: each change is decoded with the publication of its own time: those between are missing, and nothing says so.
# Version: PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/log/entries.py
. "$(dirname "$0")/common.bash"
pip_install psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import psycopg

with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    run = connection.execute
    run("CREATE TABLE t (i text PRIMARY KEY)")
    run("CREATE PUBLICATION p FOR TABLE t")
    run("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    run("INSERT INTO t VALUES ('one')")
    run("ALTER PUBLICATION p DROP TABLE t")
    run("INSERT INTO t VALUES ('two')")
    run("ALTER PUBLICATION p ADD TABLE t")
    run("INSERT INTO t VALUES ('three')")
    changes = run("SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL, 'proto_version', '1', 'publication_names', 'p')")
    messages = [bytes(data) for (data,) in changes]
    print(b" ".join(data[:1] for data in messages).decode())
    print([data[13:].decode() for data in messages if data[:1] == b"I"])
EOF
expect <<'EOF'
B R I C B R I C
['one', 'three']
EOF
