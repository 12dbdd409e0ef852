#!/usr/bin/env bash
# Guess: the binary log has a statement as its client sent it; so whether the server executed the words of `/*!NNNNNN ... */`
#   follows from its version.
# Happens: MariaDB logs words that it skipped as a plain comment, without the `!`: what is still behind `/*!` was executed.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/log/statements.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1").cursor()
cursor.execute("CREATE DATABASE d")
cursor.execute("CREATE /*!999999 OR REPLACE */ /*!50000 OR REPLACE */ TABLE d.t (a int)")
cursor.execute("SHOW BINLOG EVENTS")
print(cursor.fetchall()[-1][5])
EOF
expect <<'EOF'
CREATE /* 999999 OR REPLACE */ /*!50000 OR REPLACE */ TABLE d.t (a int)
EOF
