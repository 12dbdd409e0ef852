#!/usr/bin/env bash
# Guess: a YEAR column stores the text '0' as it stores the number 0.
# Happens: the number 0 is the year 0000, the text '0' the year 2000. A client that sends values as text changes them.
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
cursor.execute("CREATE TABLE d.t (y year)")
cursor.execute("INSERT INTO d.t VALUES (0), ('0'), ('0000')")
cursor.execute("SHOW WARNINGS")
print(cursor.fetchall())
cursor.execute("SELECT CONCAT(y) FROM d.t")
print(cursor.fetchall())
EOF
expect <<'EOF'
()
(('0000',), ('2000',), ('0000',))
EOF
