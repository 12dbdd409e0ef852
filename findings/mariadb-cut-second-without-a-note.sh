#!/usr/bin/env bash
# Guess: MariaDB in strict mode rounds a time to the seconds of its column, as MySQL does, and notes it as it notes a
#   decimal that it rounds.
# Happens: it cuts the fraction, and says nothing at all; the decimal beside it is rounded with a note.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/types/encode.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1").cursor()
cursor.execute("CREATE DATABASE d")
cursor.execute("CREATE TABLE d.t (t datetime, n decimal(4, 1))")
cursor.execute("INSERT INTO d.t VALUES ('2024-01-01 23:59:59.9', 1.25)")
cursor.execute("SHOW WARNINGS")
print(cursor.fetchall())
cursor.execute("SELECT CONCAT(t), CONCAT(n) FROM d.t")
print(cursor.fetchone())
EOF
expect <<'EOF'
(('Note', 1265, "Data truncated for column 'n' at row 1"),)
('2024-01-01 23:59:59', '1.3')
EOF
