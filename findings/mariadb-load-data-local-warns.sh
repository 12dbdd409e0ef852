#!/usr/bin/env bash
# Guess: in strict mode, MariaDB refuses a row of LOAD DATA LOCAL that it refuses in an INSERT.
# Happens: all errors become warnings: a word is stored as the number 0, text is cut, a day that is none is 0000-00-00, and
#   a duplicate key is left out.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/write/load_data.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --local-infile=1 --skip-grant-tables
printf 'xx,abcdef,2024-02-31\n1,a,2024-01-01\n1,b,2024-01-01\n' >rows.csv
observe python3 - "$port" <<'EOF'
import sys

import pymysql

connection = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1", local_infile=True)
cursor = connection.cursor()
cursor.execute("CREATE DATABASE d")
cursor.execute("CREATE TABLE d.t (id int PRIMARY KEY, s varchar(3), d date)")
cursor.execute("SELECT @@sql_mode LIKE 'STRICT_TRANS_TABLES%'")
print("strict", cursor.fetchone()[0])
print(cursor.execute("LOAD DATA LOCAL INFILE 'rows.csv' INTO TABLE d.t FIELDS TERMINATED BY ','"))
cursor.execute("SELECT id, s, CONCAT(d) FROM d.t")
print(cursor.fetchall())
try:
    cursor.execute("INSERT INTO d.t VALUES ('xx', 'a', NULL)")
except pymysql.Error as error:
    print(error.args[0])
EOF
expect <<'EOF'
strict 1
2
((0, 'abc', '0000-00-00'), (1, 'a', '2024-01-01'))
1366
EOF
