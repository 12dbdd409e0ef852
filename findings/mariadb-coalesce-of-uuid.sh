#!/usr/bin/env bash
# Guess: `COALESCE(column, 'none')` is a text, 'none' where the column is NULL, as of the other types that show as texts.
# Happens: of a column of the type UUID (MariaDB 10.7) the text is made a UUID: it is NULL, with a warning.
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
cursor.execute("CREATE TABLE d.t (u uuid, d date)")
cursor.execute("INSERT INTO d.t VALUES (NULL, NULL)")
cursor.execute("SELECT COALESCE(u, 'none'), COALESCE(d, 'none'), COALESCE(CONCAT(u), 'none') FROM d.t")
print(cursor.fetchone())
cursor.execute("SHOW WARNINGS")
print(cursor.fetchall())
EOF
expect <<'EOF'
(None, 'none', 'none')
(('Warning', 1292, "Incorrect uuid value: 'none'"),)
EOF
