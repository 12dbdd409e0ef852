#!/usr/bin/env bash
# Guess: ADBC's PostgreSQL driver learns a type when a query first returns it, so an enum is text in every connection.
# Happens: it lists all types when a database is opened. A type made later arrives as opaque bytes until another
#   database object is opened: connections of the same one do not help.
# Version: adbc-driver-postgresql 1.13.0, PostgreSQL 18.4
# Copes: spark_channel/connectors/postgresql/session/shared_database.py
. "$(dirname "$0")/common.bash"
pip_install adbc-driver-postgresql==1.13.0 adbc-driver-manager==1.13.0 pyarrow==26.0.1 psycopg==3.3.9 psycopg-binary==3.3.9
postgresql 18.4.0
observe python3 - "$url" <<'EOF'
import sys

import adbc_driver_postgresql
import adbc_driver_manager
import psycopg
from adbc_driver_manager import dbapi

def look(database):
    with adbc_driver_manager.AdbcConnection(database) as link, dbapi.Connection(database, link) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SELECT m FROM t")
            print(getattr(cursor.fetch_arrow_table().schema.types[0], "storage_type", "no opaque type"))

with adbc_driver_postgresql.connect(sys.argv[1]) as early:
    with psycopg.connect(sys.argv[1]) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        connection.execute("CREATE TABLE t AS SELECT 'ok'::mood AS m")
    look(early)
with adbc_driver_postgresql.connect(sys.argv[1]) as late:
    look(late)
EOF
expect <<'EOF'
binary
no opaque type
EOF
