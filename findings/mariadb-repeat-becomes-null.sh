#!/usr/bin/env bash
# Guess: an expression whose text is too long is an error in strict mode.
# Happens: beyond `max_allowed_packet` REPEAT and CONCAT return NULL, with no more than a warning: a row that is read by an
#   expression arrives without the value.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/session/connection.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables --max-allowed-packet=1M
observe python3 - "$port" <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1").cursor()
cursor.execute("CREATE DATABASE d")
cursor.execute("CREATE TABLE d.t (a longtext)")
cursor.execute("INSERT INTO d.t VALUES (REPEAT('x', 700000))")
cursor.execute("SELECT LENGTH(a), CONCAT(a, a) FROM d.t")
print(cursor.fetchone())
cursor.execute("SHOW WARNINGS")
print(cursor.fetchall())
EOF
expect <<'EOF'
(700000, None)
(('Warning', 1301, 'Result of concat() was larger than max_allowed_packet (1048576) - truncated'),)
EOF
