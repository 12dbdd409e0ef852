#!/usr/bin/env bash
# Guess: asyncpg's `copy_from_query` hands over every row that the server reports as copied.
# Happens: rows in front of another message in the same packet are dropped, such as of a function that says RAISE INFO:
#   the status is COPY 20, and one row arrives.
# Version: asyncpg 0.32.0, PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/read/copy_session.py
. "$(dirname "$0")/common.bash"
pip_install asyncpg==0.32.0
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import asyncio
import sys

import asyncpg

LOUD = "CREATE FUNCTION loud(i int) RETURNS int LANGUAGE plpgsql AS $$BEGIN RAISE INFO '%', i; RETURN i; END$$"

async def main():
    connection = await asyncpg.connect(sys.argv[1])
    connection.add_log_listener(lambda *_: None)
    await connection.execute(LOUD)
    for query in ("SELECT i", "SELECT loud(i)"):
        found = bytearray()

        async def sink(data):
            found.extend(data)

        print(await connection.copy_from_query(f"{query} FROM generate_series(1, 20) i", output=sink), len(found.split()))
    await connection.close()

asyncio.run(main())
EOF
expect <<'EOF'
COPY 20 20
COPY 20 1
EOF
