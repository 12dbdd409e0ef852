#!/usr/bin/env bash
# Guess: `x IS NOT NULL` is parsed to the same tree whatever SQL it comes from, Not(Is(x, Null)), so a program that walks
#   the tree needs the node's type and its two sides.
# Happens: read as PostgreSQL it is one node Is(x, Null) with an argument `negate`, the node of `x IS NULL` but for that.
#   Read as MySQL, SQLite or DuckDB it is Not(Is(x, Null)). `x IS NOT TRUE` is Not(Is(x, TRUE)) in each of them. A walk
#   that looks at types alone turns PostgreSQL's condition round.
# Version: sqlglot 30.30.0
# Copes: spark_channel/connectors/sql/definition/portable.py
. "$(dirname "$0")/common.bash"
pip_install sqlglot==30.30.0
observe python3 - <<'EOF'
import sqlglot

for text in ("x IS NULL", "x IS NOT NULL", "x IS NOT TRUE"):
    for dialect in ("postgres", "mysql", "sqlite", "duckdb"):
        node = sqlglot.parse_one(text, dialect=dialect)
        print(f"{text}, {dialect}: {type(node).__name__}, negate={node.args.get('negate')}")
EOF
expect <<'EOF'
x IS NULL, postgres: Is, negate=None
x IS NULL, mysql: Is, negate=None
x IS NULL, sqlite: Is, negate=None
x IS NULL, duckdb: Is, negate=None
x IS NOT NULL, postgres: Is, negate=True
x IS NOT NULL, mysql: Not, negate=None
x IS NOT NULL, sqlite: Not, negate=None
x IS NOT NULL, duckdb: Not, negate=None
x IS NOT TRUE, postgres: Not, negate=None
x IS NOT TRUE, mysql: Not, negate=None
x IS NOT TRUE, sqlite: Not, negate=None
x IS NOT TRUE, duckdb: Not, negate=None
EOF
