#!/usr/bin/env bash
# Guess: connections of one process to one DuckDB file share a database, as duckdb.connect() has it, or the second is refused.
# Happens: by ADBC each opens the file as a database of its own: the second sees no row of the first, and both commit the same key.
# Version: duckdb 2.0.1, adbc-driver-manager 1.13.0
# Copes: spark_channel/connectors/adbc/session.py
. "$(dirname "$0")/common.bash"
pip_install duckdb==2.0.1 adbc-driver-manager==1.13.0 pyarrow==26.0.1
observe python3 - <<'PY'
import tempfile
from importlib.util import find_spec
from pathlib import Path

from adbc_driver_manager import dbapi

path = str(Path(tempfile.mkdtemp()) / "shop.duckdb")

def connect():
    return dbapi.connect(
        driver=find_spec("_duckdb").origin, entrypoint="duckdb_adbc_init", db_kwargs={"path": path}, autocommit=True
    )

def rows(connection, statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()

with connect() as first:
    rows(first, "CREATE TABLE claims (job INTEGER PRIMARY KEY)")
with connect() as first, connect() as second:
    for name, connection in (("first", first), ("second", second)):
        rows(connection, "INSERT INTO claims VALUES (1)")
        print(name, "inserted the key 1 and sees", rows(connection, "SELECT count(*) FROM claims")[0][0], "row")
PY
expect <<'EOF'
first inserted the key 1 and sees 1 row
second inserted the key 1 and sees 1 row
EOF
