#!/usr/bin/env bash
# Guess: the first connection of ADBC's PostgreSQL driver asks for the types that PostgreSQL has: some hundreds.
# Happens: each table has a row type and an array of it, and the driver lists them all before the first query: seconds where a
#   database has 100 000 tables. An option that the Python package does not name, adbc.postgresql.type_resolver_mode=builtin,
#   lists none, and leaves types of users without a name.
# Version: adbc-driver-postgresql 1.13.0, PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/session/shared_database.py
. "$(dirname "$0")/common.bash"
pip_install adbc-driver-postgresql==1.13.0 adbc-driver-manager==1.13.0 pyarrow==26.0.1 psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import psycopg
from adbc_driver_postgresql import dbapi

MODES = {"default": {}, "builtin": {"adbc.postgresql.type_resolver_mode": "builtin"}}


def listed(server, options):
    """Rows of pg_type that a connection reads."""
    count = "SELECT pg_stat_get_tuples_returned('pg_type'::regclass) + pg_stat_get_tuples_fetched('pg_type'::regclass)"
    server.execute("SELECT pg_stat_force_next_flush()")
    server.execute("SELECT pg_stat_reset_single_table_counters('pg_type'::regclass)")
    with dbapi.connect(sys.argv[1], db_kwargs=options):
        pass
    while server.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'").fetchone()[0] > 1:
        pass
    return server.execute(count).fetchone()[0]


with psycopg.connect(sys.argv[1], autocommit=True) as server:
    before = {mode: listed(server, options) for mode, options in MODES.items()}
    for at in range(0, 1000, 100):
        server.execute(";".join(f"CREATE TABLE t{at + n} (id int)" for n in range(100)))
    for mode, options in MODES.items():
        print(f"{mode}: {listed(server, options) - before[mode]} more rows of pg_type read with 1000 more tables")
EOF
expect <<'EOF'
default: 6000 more rows of pg_type read with 1000 more tables
builtin: 0 more rows of pg_type read with 1000 more tables
EOF
