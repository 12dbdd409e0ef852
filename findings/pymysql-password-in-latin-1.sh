#!/usr/bin/env bash
# Guess: PyMySQL sends a password in UTF-8, or in the connection's character set, as mysql and Connector/J do.
# Happens: it encodes a text as Latin-1: a password with an umlaut, which the server hashed as UTF-8, is refused. Bytes pass.
# Version: PyMySQL 1.2.4, MariaDB 11.4.5
# Copes: spark_channel/connectors/mysql/session/connection.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5
observe python3 - "$work/socket" "$port" <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(unix_socket=sys.argv[1], user="root", charset="utf8mb4").cursor()
cursor.execute("CREATE USER u@'%' IDENTIFIED BY 'p\u00e4ss'")
for password in ("p\u00e4ss", "p\u00e4ss".encode()):
    try:
        pymysql.connect(port=int(sys.argv[2]), host="127.0.0.1", user="u", password=password, charset="utf8mb4")
        print(type(password).__name__, "is accepted")
    except pymysql.Error as error:
        print(type(password).__name__, error.args[0])
EOF
expect <<'EOF'
str 1045
bytes is accepted
EOF
