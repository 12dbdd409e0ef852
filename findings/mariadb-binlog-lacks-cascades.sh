#!/usr/bin/env bash
# Guess: with binlog_format=ROW the binary log has every row that changes.
# Happens: rows that a foreign key deletes by ON DELETE CASCADE are not in it: the child table is named, without a row event.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/log/schema.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" <<'EOF'
import sys

import pymysql

connection = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1", autocommit=True)
cursor = connection.cursor()
cursor.execute("CREATE DATABASE d")
cursor.execute("CREATE TABLE d.parent (a int PRIMARY KEY)")
cursor.execute("CREATE TABLE d.child (a int, FOREIGN KEY (a) REFERENCES d.parent (a) ON DELETE CASCADE)")
cursor.execute("INSERT INTO d.parent VALUES (1)")
cursor.execute("INSERT INTO d.child VALUES (1), (1)")
cursor.execute("SHOW MASTER STATUS")
file, position = cursor.fetchone()[:2]
cursor.execute("DELETE FROM d.parent")
cursor.execute("SELECT count(*) FROM d.child")
print("rows left in child:", cursor.fetchone()[0])
cursor.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {position}")
print([event[2] for event in cursor.fetchall()])
EOF
expect <<'EOF'
rows left in child: 0
['Gtid', 'Annotate_rows', 'Table_map', 'Table_map', 'Delete_rows_v1', 'Xid']
EOF
