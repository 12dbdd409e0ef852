#!/usr/bin/env bash
# Guess: the variable `sql_select_limit` limits the rows of SELECT statements, as its name and documentation say.
# Happens: it cuts the answers of SHOW statements, too: of SHOW DATABASES, SHOW GRANTS, SHOW VARIABLES.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/session/variables.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1").cursor()
print(cursor.execute("SHOW VARIABLES LIKE 'binlog_%'") > 1)
cursor.execute("SET sql_select_limit = 1")
print(cursor.execute("SHOW VARIABLES LIKE 'binlog_%'"))
EOF
expect <<'EOF'
True
1
EOF
