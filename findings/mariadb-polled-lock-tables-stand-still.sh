#!/usr/bin/env bash
# Guess: information_schema.INNODB_TRX shows the transactions of now, so a test or a monitor may ask it as often as it likes.
# Happens: the server fills it, INNODB_LOCKS and INNODB_LOCK_WAITS from one copy, and makes that copy anew only when no
#   session has read it for 0.1 s. A client that asks every 20 ms gets the first answer for as long as it asks: a transaction
#   that began since is missing, and one that ended is still listed. Two monitors can hide the locks from each other.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: tests/connectors/mysql/shop.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" 2>/dev/null <<'EOF'
import sys
import time

import pymysql

watcher, worker = (pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1") for _ in range(2))


def transactions() -> int:
    with watcher.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx")
        return cursor.fetchone()[0]


worker.query("CREATE DATABASE d")
worker.query("CREATE TABLE d.t (id INT) ENGINE=InnoDB")
transactions()
worker.query("BEGIN")
worker.query("INSERT INTO d.t VALUES (1)")
seen = set()
for _ in range(100):
    time.sleep(0.02)
    seen.add(transactions())
print("asked each 20 ms for 2 s:", seen)
time.sleep(0.5)
print("after half a second of silence:", transactions())
EOF
expect <<'EOF'
asked each 20 ms for 2 s: {0}
after half a second of silence: 1
EOF
