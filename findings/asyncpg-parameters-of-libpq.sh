#!/usr/bin/env bash
# Guess: asyncpg takes a url that libpq and psycopg take, and ignores or refuses by name the parameters that it lacks.
# Happens: it sends them to the server as settings, which refuses the connection: `keepalives=1` is enough.
# Version: asyncpg 0.32.0, PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/read/asyncpg_arguments.py
. "$(dirname "$0")/common.bash"
pip_install asyncpg==0.32.0 psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url?keepalives=1" <<'EOF'
import asyncio
import sys

import asyncpg
import psycopg

with psycopg.connect(sys.argv[1]) as connection:
    print("psycopg", connection.execute("SELECT 1").fetchone())
try:
    asyncio.run(asyncpg.connect(sys.argv[1]))
except asyncpg.PostgresError as error:
    print("asyncpg", error)
EOF
expect <<'EOF'
psycopg (1,)
asyncpg unrecognized configuration parameter "keepalives"
EOF
