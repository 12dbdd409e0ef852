"""The definition of a MySQL or MariaDB table, read from the catalog and from SHOW CREATE TABLE."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_channel.connectors.base.definition import (
    ColumnDefinition,
    ConstraintDefinition,
    ConstraintKind,
    ForeignKeyDefinition,
    SequenceDefinition,
    TableDefinition,
)
from spark_channel.connectors.mysql.dialect import (
    CatalogRows,
    MysqlDialect,
    MysqlTable,
    catalog_rows,
    parted,
)
from spark_channel.connectors.sql.catalog import TABLE
from spark_channel.connectors.sql.session import Session
from spark_channel.errors import SchemaError

__all__ = ["on_table", "read_definition", "read_definitions"]

_HEAD = re.compile(r"CREATE TABLE `(?:[^`]|``)*` \(\n")
_NAME = r"`((?:[^`]|``)*)`"
_NAMES = r"\(((?:`(?:[^`]|``)*`(?:, ?)?)+)\)"
_FOREIGN_KEY = re.compile(
    rf"\s*CONSTRAINT {_NAME} FOREIGN KEY {_NAMES} REFERENCES (?:{_NAME}\.)?{_NAME} {_NAMES}(.*)"
)
_INDEX = re.compile(rf"\s*((?:UNIQUE |FULLTEXT |SPATIAL )?KEY {_NAME} .*?),?$")
_FOLLOWING = re.compile(r"\n\).* AUTO_INCREMENT=(\d+)")
_TRIGGERS = (
    "SELECT event_object_schema, event_object_table, trigger_name FROM information_schema.triggers"
)
_CHECK = re.compile(r"\s*CONSTRAINT `((?:[^`]|``)*)` CHECK ")
_WORD = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|''|\\.)*'|/\*!\d*|[()]|[^\s()'`]+", re.DOTALL)
_OPTION = re.compile(
    r"\b([A-Z_]+)=('(?:[^'\\]|''|\\.)*'|\S+)|(WITH SYSTEM VERSIONING|PARTITION BY)"
)
_KNOWN_OPTIONS = ("ENGINE", "AUTO_INCREMENT", "CHARSET", "COLLATE", "COMMENT")
_AFTER_DEFAULT = {
    "ON",
    "COMMENT",
    "CHECK",
    "INVISIBLE",
    "COLUMN_FORMAT",
    "STORAGE",
    "COMPRESSED",
    "WITHOUT",
    "WITH",
}


def read_definition(
    session: Session, table: MysqlTable, reads: MysqlDialect | None = None
) -> TableDefinition:
    """What the server says of the table. `reads`: how its rows are read, of which some NULL may not be there."""
    full_name = table.schema, table.name
    rows = catalog_rows(session, [full_name]).get(
        full_name, CatalogRows((*full_name, None, None, None))
    )
    return read_definitions(session, [(table, rows)], reads)[0]


def read_definitions(
    session: Session,
    tables: Sequence[tuple[MysqlTable, CatalogRows]],
    reads: MysqlDialect | None = None,
) -> list[TableDefinition]:
    """As `read_definition`, of tables whose rows of the catalog are known."""
    triggers: dict[tuple[str, str], list[str]] = {}
    for some in parted(tables):
        queries = [f"{_TRIGGERS} WHERE {on_table(table.schema, table.name)}" for table, _ in some]
        for schema, name, trigger in sorted(session.rows(" UNION ALL ".join(queries))):
            triggers.setdefault((str(schema), str(name)), []).append(str(trigger))
    return [
        _definition(session, table, rows, triggers.get((table.schema, table.name), []), reads)
        for table, rows in tables
    ]


def _definition(
    session: Session,
    table: MysqlTable,
    rows: CatalogRows,
    triggers: Sequence[str],
    reads: MysqlDialect | None,
) -> TableDefinition:
    dialect = MysqlDialect()
    reads = reads or dialect
    table_sql = ".".join(map(dialect.quoted, (table.schema, table.name)))
    statement, keys, checks = _apart(_shown(session, table, table_sql))
    lines = (_INDEX.match(line) for line in statement.split("\n"))
    texts = {_unquoted(line[2]): line[1] for line in lines if line is not None}
    following = _FOLLOWING.search(statement)
    facts = {str(row[0]): (row[3], row[4], row[7], row[8]) for row in rows.columns}
    about = _described(statement)
    plain = _Described()
    columns = tuple(
        ColumnDefinition(
            column.name,
            column.declared,
            not_null=column.not_null and reads.read_as_null(table, column, "") is None,
            default=about.get(column.name, plain).default,
            generated=f"{facts[column.name][3]} {facts[column.name][1]}"
            if column.generated
            else None,
            sequence=SequenceDefinition(table.name, int(following[1]) if following else 1)
            if "auto_increment" in str(facts[column.name][1]).lower()
            else None,
            collation=about.get(column.name, plain).collation,
            comment=str(facts[column.name][2]) or None,
        )
        for column in table.columns
        if column.name in facts
    )
    return TableDefinition(
        dialect.sql,
        table.schema,
        table.name,
        columns,
        (*_indexes(rows.indexes, texts), *checks, *_own_checks(about)),
        keys,
        str(rows.table[4] or "") or None,
        others=tuple(f"trigger {trigger}" for trigger in triggers),
        statement=statement,
        own=tuple(_own(statement, about)),
    )


def _shown(session: Session, table: MysqlTable, table_sql: str) -> str:
    """
    Raises:
        SchemaError: the definition is no text: MariaDB shows the bytes of a default as they are.
    """
    try:
        with session.closed_on_failure():
            return str(session.rows(f"SHOW CREATE TABLE {table_sql}")[0][1])
    except UnicodeDecodeError as error:
        raise SchemaError(
            f"the server shows the definition of {table.label} with bytes that are no text, as in DEFAULT 0xFF, and "
            "it cannot be repeated: set schema (option 'createTable') to keys"
        ) from error


def on_table(database: str, name: str) -> str:
    """The condition of the table's triggers in the catalog.

    MySQL finds them by an index of its dictionary where the catalog is named, and reads all of the server otherwise.
    """
    literal = MysqlDialect().literal
    return (
        f"event_object_catalog = 'def' AND event_object_schema = {literal(database, None)} "
        f"AND event_object_table = {literal(name, None)}"
    )


@dataclass(slots=True)
class _Described:
    """What SHOW CREATE TABLE says of a column behind its type, each as SQL, and what no other system has."""

    default: str | None = None
    check: str | None = None
    collation: str | None = None
    own: list[str] = dataclasses.field(default_factory=list)


def _described(statement: str) -> dict[str, _Described]:
    """The clauses of each column, by its name: SHOW CREATE TABLE prints one column in a line."""
    clauses = {}
    for line in statement.split("\n"):
        words = list(_WORD.finditer(line.rstrip().removesuffix(",")))
        if line.startswith("  `") and words:
            clauses[_unquoted(words[0][0][1:-1])] = _words(line, words)
        elif line.startswith("  PERIOD FOR "):
            period = _Described(own=[line.strip().removesuffix(",")])
            clauses[line] = period
    return clauses


def _words(line: str, words: Sequence[re.Match[str]]) -> _Described:
    """Parse the line of one column; `words`: its tokens."""
    described, column, depth = _Described(), _unquoted(words[0][0][1:-1]), 0
    open_, begins = "", 0
    """The part whose text is not yet at its end, and where that begins."""

    def end(at: int) -> None:
        text = line[begins:at].strip()
        if open_ == "DEFAULT" and text.upper() != "NULL":
            described.default = text
        elif open_ == "CHECK":
            described.check = f"CHECK {text}"

    for word, behind in zip(words, [*(word[0].upper() for word in words[1:]), ""], strict=True):
        text_of_word, is_outside = word[0].upper(), depth == 0
        depth += (text_of_word == "(") - (text_of_word == ")")
        if not is_outside:
            continue
        if open_ and (text_of_word in _AFTER_DEFAULT or text_of_word.startswith("/*!")):
            end(word.start())
            open_ = ""
        if text_of_word in ("DEFAULT", "CHECK"):
            open_, begins = text_of_word, word.end()
        elif text_of_word == "COLLATE":
            described.collation = behind.lower()
        elif (text_of_word, behind) == ("ON", "UPDATE"):
            described.own.append(f"ON UPDATE of {column}")
        elif text_of_word in ("INVISIBLE", "COMPRESSED"):
            described.own.append(f"{text_of_word} of {column}")
        elif (text_of_word, behind) == ("WITHOUT", "SYSTEM"):
            described.own.append(f"WITHOUT SYSTEM VERSIONING of {column}")
    end(len(line.rstrip().removesuffix(",")))
    return described


def _own_checks(columns: Mapping[str, _Described]) -> Iterator[ConstraintDefinition]:
    """The checks in the lines of columns, which have no names."""
    for column in columns.values():
        if column.check is not None:
            name = column.check.removeprefix("CHECK ")
            yield ConstraintDefinition("check", name, (), column.check, is_plain=False)


def _own(statement: str, columns: Mapping[str, _Described]) -> Iterator[str]:
    """Name the parts that only MySQL and MariaDB have, for people."""
    for column in columns.values():
        yield from column.own
    _, _, behind = statement.rpartition("\n)")
    for name, value, words in _OPTION.findall(behind):
        if words:
            yield {"PARTITION BY": "partitions"}.get(words, words.removeprefix("WITH ").lower())
        elif name not in _KNOWN_OPTIONS:
            yield f"{name}={value}"


def _apart(
    statement: str,
) -> tuple[str, tuple[ForeignKeyDefinition, ...], tuple[ConstraintDefinition, ...]]:
    """What SHOW CREATE TABLE shows, with `TABLE` for the name and without foreign keys; these; and the checks.

    Each column, key and constraint stands on a separate line, in which a line break of a text is escaped.
    """
    head = _HEAD.match(statement)
    if head is None:
        return "", (), ()
    lines = statement[head.end() :].split("\n")
    end = max(number for number, line in enumerate(lines) if line.startswith(")"))
    keys, checks, lines_left = [], [], []
    for line in lines[:end]:
        text = line.rstrip().removesuffix(",")
        if match := _FOREIGN_KEY.match(text):
            keys.append(_foreign_key(match))
            continue
        if match := _CHECK.match(text):
            name = match[1].replace("``", "`")
            condition = text.strip().removeprefix(f"CONSTRAINT `{match[1]}` ")
            checks.append(ConstraintDefinition("check", name, (), condition, is_plain=False))
        lines_left.append(text)
    without_keys = "\n".join([f"CREATE TABLE {TABLE} (", ",\n".join(lines_left), *lines[end:]])
    return without_keys, tuple(keys), tuple(checks)


def _foreign_key(match: re.Match[str]) -> ForeignKeyDefinition:
    name, columns, schema, table, referenced, behind = match.groups()
    return ForeignKeyDefinition(
        _unquoted(name),
        tuple(map(_unquoted, re.findall(_NAME, columns))),
        _unquoted(schema or ""),
        _unquoted(table),
        tuple(map(_unquoted, re.findall(_NAME, referenced))),
        behind.rstrip(),
    )


def _unquoted(name: str) -> str:
    return name.replace("``", "`")


def _indexes(
    rows: Sequence[tuple[Any, ...]], texts: Mapping[str, str]
) -> Iterator[ConstraintDefinition]:
    parts_of: dict[str, list[tuple[object, ...]]] = {}
    for name, unique, column, _, part, order, kind in rows:
        parts_of.setdefault(str(name), []).append((unique, column, part, order, kind))
    for name, parts in parts_of.items():
        # A part of a column, an expression, a hash or an index of words is not of columns alone.
        plain = all(
            column is not None and part is None and order == "A" and str(kind) == "BTREE"
            for _, column, part, order, kind in parts
        )
        columns = tuple(str(column) for _, column, *_ in parts if column is not None)
        is_unique = not int(str(parts[0][0]))
        constraint_kind: ConstraintKind = "primary key" if name == "PRIMARY" else "index"
        text = texts.get(name, "")
        yield ConstraintDefinition(
            constraint_kind, name, columns, text, is_unique=is_unique, is_plain=plain
        )
