#!/usr/bin/env bash
# Guess: MariaDB shows a FLOAT with as many digits as make the same number again.
# Happens: it shows 6 digits, and so does the text protocol of every driver: 16777216 arrives as 16777200. As a double,
#   `f + 0e0`, it shows all of them.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/dialect/dialect.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1").cursor()
cursor.execute("CREATE DATABASE d")
cursor.execute("CREATE TABLE d.t (f float)")
cursor.execute("INSERT INTO d.t VALUES (16777216)")
cursor.execute("SELECT f, f + 0e0, f = 16777216 FROM d.t")
print(cursor.fetchone())
EOF
expect <<'EOF'
(16777200.0, 16777216.0, 1)
EOF
