#!/usr/bin/env bash
# Guess: to open a SQLite file by hand, read its first bytes and close it again changes nothing for a connection of the
#   same process.
# Happens: POSIX locks belong to the process: the close drops the connection's locks, and another process may write in the
#   middle of its transaction. A second SQLite library in the process does the same.
# Version: SQLite of python3 (any so far), on Linux
# Copes: spark_channel/connectors/sqlite/session.py
# Source: https://www.sqlite.org/howtocorrupt.html, section 2.2
. "$(dirname "$0")/common.bash"
observe python3 - <<'EOF'
import sqlite3
import subprocess
import sys

OTHER = """
import sqlite3
try:
    sqlite3.connect("a.db", timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE")
    print("another process has the lock, too")
except sqlite3.OperationalError as error:
    print(error)
"""
print("SQLite", sqlite3.sqlite_version, file=sys.stderr)
connection = sqlite3.connect("a.db", isolation_level=None)
connection.execute("CREATE TABLE t (a)")
connection.execute("BEGIN IMMEDIATE")
subprocess.run([sys.executable, "-c", OTHER], check=True)
with open("a.db", "rb") as file:
    file.read(16)
subprocess.run([sys.executable, "-c", OTHER], check=True)
EOF
expect <<'EOF'
database is locked
another process has the lock, too
EOF
