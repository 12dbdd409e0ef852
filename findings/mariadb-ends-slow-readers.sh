#!/usr/bin/env bash
# Guess: a client may take the rows of one long statement as slowly as it likes; timeouts are for idle sessions.
# Happens: when it takes nothing for `net_write_timeout`, a minute by default, the server ends the session in the middle of
#   the result. A backpressure that stops the reading loses the statement.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/session/connection.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" 2>/dev/null <<'EOF'
import sys
import time

import pymysql

for seconds in (1, 60):
    connection = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1", cursorclass=pymysql.cursors.SSCursor)
    cursor = connection.cursor()
    cursor.execute("CREATE DATABASE IF NOT EXISTS d")
    cursor.execute("USE d")
    cursor.execute(f"SET net_write_timeout = {seconds}")
    cursor.execute("SELECT REPEAT('x', 1000), seq FROM seq_1_to_100000")
    rows = 0
    try:
        while cursor.fetchone():
            rows += 1
            if rows == 1:
                time.sleep(4)
        print(seconds, rows)
    except pymysql.Error as error:
        print(seconds, 0 < rows < 100000, error.args[0])
EOF
expect <<'EOF'
1 True 2013
60 100000
EOF
