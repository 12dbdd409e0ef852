#!/usr/bin/env bash
# Guess: to ask information_schema.REFERENTIAL_CONSTRAINTS which foreign keys refer to one table costs a look at that table.
# Happens: MariaDB opens every table of every database that the login may see, from disk where its cache is smaller: 4 s of CPU
#   for 20 000 tables. InnoDB's own list of keys, INNODB_SYS_FOREIGN, opens none; its names are spelled as those of files.
# Version: MariaDB 11.4.5, PyMySQL 1.2.4
# Copes: spark_channel/connectors/mysql/write/references.py
. "$(dirname "$0")/common.bash"
pip_install PyMySQL==1.2.4
mariadb 11.4.5 --skip-grant-tables
observe python3 - "$port" 2>/dev/null <<'EOF'
import sys

import pymysql

cursor = pymysql.connect(port=int(sys.argv[1]), host="127.0.0.1").cursor()
for name in ("few", "many"):
    cursor.execute(f"CREATE DATABASE {name}")
cursor.execute("CREATE TABLE few.parent (id INT PRIMARY KEY)")
cursor.execute("CREATE TABLE few.`a b` (id INT, FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE)")
for number in range(100):
    cursor.execute(f"CREATE TABLE many.t{number} (id INT)")


def opened() -> int:
    cursor.execute("SHOW SESSION STATUS LIKE 'Opened_table_definitions'")
    return int(cursor.fetchone()[1])


questions = {
    "REFERENTIAL_CONSTRAINTS": "SELECT table_name FROM information_schema.referential_constraints "
    "WHERE unique_constraint_schema = 'few' AND referenced_table_name = 'parent'",
    "INNODB_SYS_FOREIGN": "SELECT for_name FROM information_schema.innodb_sys_foreign WHERE ref_name = 'few/parent'",
}
for name, question in questions.items():
    cursor.execute("FLUSH TABLES")
    before = opened()
    cursor.execute(question)
    rows = cursor.fetchall()
    print(f"{name}: {rows}; tables of `many` were opened: {opened() - before >= 100}")
EOF
expect <<'EOF'
REFERENTIAL_CONSTRAINTS: (('a b',),); tables of `many` were opened: True
INNODB_SYS_FOREIGN: (('few/a@0020b',),); tables of `many` were opened: False
EOF
