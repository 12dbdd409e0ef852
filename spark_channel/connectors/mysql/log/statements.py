"""What a statement in the binary log means for the rows of one table. Pure.

With rows in the log, statements are what changes tables as a whole: TRUNCATE and DDL. A statement that changes rows is
there only if a session has switched to another format. A statement that names the table and is not in the lists of this
module ends the stream.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from spark_channel.connectors.mysql.types import parts

__all__ = [
    "DROPS",
    "KEEPING_ENGINES",
    "TRUNCATES",
    "CascadeEffect",
    "ColumnEffect",
    "Effect",
    "LoggedStatement",
    "defined_by",
    "effects_of",
]

TRUNCATES = "truncates"
DROPS = ("drops it", "drops its database")

KEEPING_ENGINES = frozenset({"innodb", "myisam", "aria", "rocksdb", "tokudb", "memory", "archive"})
"""Engines that keep a table's rows, and whose changes of them are all in the log: not BLACKHOLE, MERGE, CONNECT."""

_ANSI_QUOTES = 1 << 2
_NO_BACKSLASH_ESCAPES = 1 << 20
_STRICT = 1 << 21 | 1 << 22
"""Bits of sql_mode as an event has it."""

_BY_STATEMENT = "changes its rows by a statement, and not by rows"
_OF_PARTITIONS = "removes or replaces rows of whole partitions"
_UNKNOWN = "is not known to keep its rows"

_CHANGES_ROWS = ("insert", "replace", "update", "delete", "load", "with")
_CALLS = ("select", "do", "call", "values", "execute", "(")
"""In the log only for what the functions do that they call; which tables these change is not in the statement."""
_KEEPS_ROWS = ("grant", "revoke", "flush", "set", "checksum", "comment", "install", "uninstall")
_OBJECTS_WITHOUT_ROWS = frozenset(
    {
        "view",
        "trigger",
        "procedure",
        "function",
        "package",
        "event",
        "user",
        "role",
        "server",
        "index",
        "temporary",
    }
)
_OBJECTS = _OBJECTS_WITHOUT_ROWS | {
    "table",
    "tables",
    "database",
    "schema",
    "sequence",
    "tablespace",
}

_PARTITION_VERBS = ("truncate", "drop", "exchange", "discard", "import", "convert", "repair")
_ACTIONS_THAT_KEEP = ("drop", "alter", "order", "enable", "disable", "force", "partition")
_PARTITION_ACTIONS_THAT_KEEP = ("reorganize", "coalesce", "rebuild", "optimize", "analyze", "check")
_NO_COLUMNS = (
    "index",
    "key",
    "fulltext",
    "spatial",
    "unique",
    "primary",
    "foreign",
    "constraint",
    "check",
)
_OPTIONS = frozenset(
    {
        "algorithm",
        "lock",
        "engine",
        "auto_increment",
        "avg_row_length",
        "charset",
        "checksum",
        "collate",
        "comment",
        "compression",
        "delay_key_write",
        "encrypted",
        "encryption",
        "encryption_key_id",
        "key_block_size",
        "max_rows",
        "min_rows",
        "pack_keys",
        "page_checksum",
        "page_compressed",
        "page_compression_level",
        "row_format",
        "stats_auto_recalc",
        "stats_persistent",
        "stats_sample_pages",
        "table_checksum",
        "transactional",
    }
)
_REFERENCES = ("cascade", "set")

_OTHER_NAMES = {
    "integer": "int",
    "int1": "tinyint",
    "int2": "smallint",
    "int3": "mediumint",
    "int4": "int",
    "int8": "bigint",
    "middleint": "mediumint",
    "bool": "tinyint",
    "boolean": "tinyint",
    "dec": "decimal",
    "numeric": "decimal",
    "fixed": "decimal",
    "number": "decimal",
    "real": "double",
    "float4": "float",
    "float8": "double",
    "character": "char",
    "nchar": "char",
    "nvarchar": "varchar",
    "varchar2": "varchar",
    "clob": "longtext",
    "raw": "varbinary",
}
_FAMILIES = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "integer"),
    **dict.fromkeys(("varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "blob"),
}
"""Types between which a strict mode changes no value; each other type is its own family."""
_WITH_FRACTION = ("datetime", "timestamp", "time")
_SAME_SIZES = ("binary", "float", "double")
_COMMENT = r"/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|--(?=[\s\x00-\x1f]|$)[^\n]*|\#[^\n]*"
"""The words of `/*! ... */` count, since the server executed them: it logs text that it skipped as a plain comment
(findings/mariadb-binlog-skipped-comments.sh).
"""
_NAME = r"`(?:[^`]|``)*`"
_BARE = r"[\w$@\u0080-\uffff]+|\S"


@dataclass(frozen=True, slots=True)
class LoggedStatement:
    """`default`: the database of names without one. `mode`: the bits of the session's sql_mode."""

    default: str
    text: str
    mode: int = _STRICT


@dataclass(frozen=True, slots=True)
class ColumnEffect:
    """A followed column is dropped or renamed (`lost`), or its values are changed without a record in the log."""

    column: str
    lost: bool


class CascadeEffect(str):
    """Why a table cannot be followed past a foreign key, on a server that does not log what it changes by it."""

    __slots__ = ()


Effect = str | ColumnEffect
"""TRUNCATES, a column's, or why the table cannot be followed past the statement."""


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    kind: Literal["bare", "name", "text"]

    def says(self, *words: str) -> bool:
        return self.kind == "bare" and self.text.lower() in words


_Words = Sequence[_Word]
_END = _Word("", "text")
"""What is behind the last word."""


def effects_of(
    statement: LoggedStatement,
    database: str,
    table: str,
    *,
    folds: bool = False,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Effect]:
    """What the statement does to the rows of `database.table`; nothing if it keeps them as they are.

    `folds`: names of tables are equal in any case. `columns`: followed columns with their declared types.
    """
    words = _executed_words(statement)
    if not words or not (_is_named(statement.text, table, database) or words[0].says(*_CALLS)):
        return
    ours = _TableMatcher(statement.default, database, table, folds)
    verb = words[0]
    effect: Effect | None = None
    if verb.says(*_CALLS):
        effect = "calls functions, which may change its rows without a record in the log"
    elif verb.says("alter"):
        by_name = {name.lower(): (name, kind) for name, kind in (columns or {}).items()}
        yield from _alter(words, ours, by_name, is_strict=bool(statement.mode & _STRICT))
    elif verb.says("create"):
        effect = _create(words, ours)
    elif verb.says("drop"):
        effect = _drop(words, ours)
    elif verb.says("truncate"):
        effect = _truncate(words, ours)
    elif verb.says(*_CHANGES_ROWS):
        effect = _BY_STATEMENT if ours.anywhere(words) else None
    elif verb.says("rename"):
        is_ours = not _at(words, 1).says("user") and ours.anywhere(words)
        effect = "renames it" if is_ours else None
    elif not (verb.says(*_KEEPS_ROWS) or _is_maintenance(words)):
        effect = _UNKNOWN if ours.anywhere(words) else None
    if effect is not None:
        yield effect


def defined_by(
    statement: LoggedStatement, database: str, table: str, *, folds: bool = False
) -> Literal["create", "alter", ""]:
    """Whether the statement makes a table of this name, or changes its definition."""
    words = _executed_words(statement)
    verb, at = _at(words, 0), _object(words)
    if not verb.says("create", "alter") or not _at(words, at).says("table"):
        return ""
    ours = _TableMatcher(statement.default, database, table, folds)
    if not ours.at(words, _behind_if(words, at + 1)):
        return ""
    return "create" if verb.says("create") else "alter"


@lru_cache(maxsize=4)
def _executed_words(statement: LoggedStatement) -> _Words:
    """Asked for each table that a feed follows."""
    return _executed(list(_words(statement)))


def _is_named(text: str, table: str, database: str) -> bool:
    """Whether the text has one of the names, in any case and with any quotes: a long one is then looked into."""
    lowered = text.lower()
    names = (name.lower() for name in (table, database))
    return any(
        spelling in lowered
        for name in names
        for spelling in (name, name.replace("`", "``"), name.replace('"', '""'))
    )


class _TableMatcher:
    """Recognises the name of the table."""

    def __init__(self, default: str, database: str, table: str, folds: bool) -> None:
        self._folds = folds
        self.database, self._table = self.same(database), self.same(table)
        self._is_default = self.same(default) == self.database

    def same(self, name: str) -> str:
        name = name.removeprefix("#mysql50#")
        return name.lower() if self._folds else name

    def at(self, words: _Words, at: int) -> int:
        """How many words the table's name has that begins at `at`; 0 if no name of the table's does."""
        first, point, second = (_at(words, at + number) for number in range(3))
        if first.says("."):  # MySQL reads `.t` as `t`
            return 2 if self._is_default and self._is_table(point) else 0
        if first.kind == "text":
            return 0
        if point.says("."):
            is_ours = self.same(first.text) == self.database and self._is_table(second)
            return 3 if is_ours else 0
        return 1 if self._is_default and self._is_table(first) else 0

    def anywhere(self, words: _Words) -> bool:
        return any(self.at(words, at) for at in range(len(words)) if _begins(words, at))

    def _is_table(self, word: _Word) -> bool:
        return word.kind != "text" and self.same(word.text) == self._table


def _truncate(words: _Words, ours: _TableMatcher) -> Effect | None:
    begin = 2 if _at(words, 1).says("table") and len(words) > 2 else 1
    length = ours.at(words, begin)
    tail = words[begin + length :]
    if length and (not tail or tail[0].says("wait", "nowait")):
        return TRUNCATES
    return _UNKNOWN if ours.anywhere(words[1:]) else None


def _object(words: _Words) -> int:
    """Where CREATE, ALTER or DROP says what sort of thing it is about; behind the end if it does not."""
    return next((at for at, word in enumerate(words) if word.says(*_OBJECTS)), len(words))


def _drop(words: _Words, ours: _TableMatcher) -> Effect | None:
    at = _object(words)
    if _at(words, at).says(*_OBJECTS_WITHOUT_ROWS):
        return None
    if _at(words, at).says("database", "schema"):
        return _of_database(words, at, ours)
    return DROPS[0] if ours.anywhere(words[at:]) else None


def _of_database(words: _Words, at: int, ours: _TableMatcher) -> Effect | None:
    name = _at(words, _behind_if(words, at + 1))
    return DROPS[1] if ours.same(name.text) == ours.database else None


def _create(words: _Words, ours: _TableMatcher) -> Effect | None:
    """A table that was not there has lost no rows."""
    at = _object(words)
    replaces = _at(words, 1).says("or")
    if _at(words, at).says(*_OBJECTS_WITHOUT_ROWS):
        return None
    if _at(words, at).says("database", "schema"):
        return _of_database(words, at, ours) if replaces else None
    if not _at(words, at).says("table"):
        return _UNKNOWN if ours.anywhere(words) else None
    begin = _behind_if(words, at + 1)
    if length := ours.at(words, begin):
        return "creates it again" if replaces else _cascades(words[begin + length :])
    if ours.anywhere(words) and any(word.says("merge", "mrg_myisam") for word in words):
        return "lets another table change its rows"
    return None


def _cascades(words: _Words) -> Effect | None:
    """A definition by which InnoDB changes rows without a record in the log."""
    for at in range(len(words)):
        on, event, rule = (_at(words, at + number) for number in range(3))
        if on.says("on") and event.says("delete", "update") and rule.says(*_REFERENCES):
            return CascadeEffect(
                f"gives it a foreign key with ON {event.text.upper()} {rule.text.upper()}, "
                "by which InnoDB changes its rows without a record in the log"
            )
    return None


def _alter(
    words: _Words, ours: _TableMatcher, columns: Mapping[str, tuple[str, str]], *, is_strict: bool
) -> Iterator[Effect]:
    at = _object(words)
    if _at(words, at).says(*_OBJECTS_WITHOUT_ROWS, "database", "schema"):
        return
    if not _at(words, at).says("table"):
        if ours.anywhere(words):
            yield _UNKNOWN
        return
    tail = words[_behind_if(words, at + 1) :]
    length = ours.at(tail, 0)
    if not length:
        yield from filter(None, (_moved(action, ours) for action in _actions(tail)))
        return
    actions = _actions(tail[length:])
    if any(word.says("ignore") for word in words[:at]):
        yield "removes or changes rows that do not fit (IGNORE)"
        return
    for action in actions:
        if (effect := _action(action)) is not None:
            yield effect
        else:
            yield from _of_columns(action, columns, is_strict=is_strict)


def _actions(words: _Words) -> list[list[_Word]]:
    """Cut at commas outside of parentheses."""
    actions, depth = [list[_Word]()], 0
    for word in words:
        depth += word.says("(") - word.says(")")
        if depth == 0 and word.says(","):
            actions.append([])
        else:
            actions[-1].append(word)
    while actions[0] and actions[0][0].says("wait", "nowait"):
        actions[0] = actions[0][2 if actions[0][0].says("wait") else 1 :]
    return [action for action in actions if action]


def _moved(action: _Words, ours: _TableMatcher) -> Effect | None:
    """What an ALTER of another table does to this one."""
    if not ours.anywhere(action):
        return None
    for at, word in enumerate(action):
        after = _at(action, at + 1)
        if word.says("rename") and not after.says("column", "index", "key"):
            return "renames it"
        if word.says("exchange", "convert") and after.says("partition", "table"):
            return _OF_PARTITIONS
        if word.says("union") and after.says("=", "("):
            return "lets another table change its rows"
    return None


def _action(action: _Words) -> Effect | None:
    """What one action of an ALTER TABLE of the table does to its rows; None: nothing, or to a column."""
    verb, after = _at(action, 0), _at(action, 1)
    if verb.says("rename"):
        return None if after.says("column", "index", "key") else "renames it"
    if verb.says(*_PARTITION_VERBS) and after.says("partition", "tablespace", "table"):
        return _OF_PARTITIONS
    if verb.says("add") and after.says("system", "period"):
        return "makes it keep its history, whose rows the log has, too"
    if verb.says("drop") and after.says("system", "period"):
        return "removes rows of its history"
    if verb.says("add", "modify", "change"):
        return _cascades(action)
    if verb.says(*_ACTIONS_THAT_KEEP) or (verb.says("convert") and after.says("to")):
        return None
    if verb.says("with", "without") and after.says("validation"):
        return None
    if verb.says(*_PARTITION_ACTIONS_THAT_KEEP) and after.says("partition"):
        return None
    return _of_options(action)


def _of_options(action: _Words) -> Effect | None:
    """Options of the table, with or without `=`, one after another."""
    tail = list(action)
    while tail:
        if tail[0].says("partition", "remove"):
            return None
        if tail[0].says("default"):
            tail = tail[1:]
            continue
        length = 1
        if tail[0].says("character", "data", "index") and _at(tail, 1).says("set", "directory"):
            length = 2
        elif not tail[0].says(*_OPTIONS):
            return _UNKNOWN
        value = length + _at(tail, length).says("=")
        if tail[0].says("engine") and _at(tail, value).text.lower() not in KEEPING_ENGINES:
            return f"gives it the engine {_at(tail, value).text}, which does not keep its rows"
        tail = tail[value + 1 :]
    return None


def _of_columns(
    action: _Words, columns: Mapping[str, tuple[str, str]], *, is_strict: bool
) -> Iterator[ColumnEffect]:
    """What the action does to followed columns: their names and types, by their names in lower case."""
    verb = action[0]
    if verb.says("convert") and not is_strict:  # the table's texts to another character set
        yield from (ColumnEffect(name, lost=False) for name, _ in columns.values())
    at = 1
    if not verb.says("drop", "rename", "modify", "change") or _at(action, at).says(*_NO_COLUMNS):
        return
    if _at(action, at).says("column"):
        at += 1
    at = _behind_if(action, at)
    column = columns.get(_at(action, at).text.lower())
    if column is None:
        return
    name, declared = column
    if verb.says("change"):
        at += 1
    if verb.says("drop", "rename") or _at(action, at).text.lower() != name.lower():
        yield ColumnEffect(name, lost=True)
    elif not is_strict or not _keeps_values(declared, action[at + 1 :]):
        yield ColumnEffect(name, lost=False)


def _keeps_values(declared: str, definition: _Words) -> bool:
    """Whether a column of type `declared` has the same values after it was given this definition, in a strict mode."""
    outside, depth = [], 0
    for word in definition:
        depth -= word.says(")")
        if depth == 0:
            outside.append(word)
        depth += word.says("(")
    if any(word.says("as", "generated", "virtual", "stored", "persistent") for word in outside[1:]):
        return False
    first = _at(definition, 0).text.lower()
    new = _OTHER_NAMES.get(first, first)
    if new == "national":
        return _keeps_values(declared, definition[1:])
    if new == "char" and _at(definition, 1).says("varying"):
        new, definition = "varchar", definition[1:]
    old, sizes, _ = parts(declared)
    if _FAMILIES.get(new, new) != _FAMILIES.get(old, old):
        return False
    size_words = definition[2:4] if _at(definition, 1).says("(") else []
    new_sizes = [word.text for word in size_words if word.text.isdigit()]
    if new in _WITH_FRACTION:
        return int(new_sizes[0] if new_sizes else 0) >= int(sizes[0] if sizes else 0)
    return new not in _SAME_SIZES or new_sizes[:1] == list(sizes[:1])


def _is_maintenance(words: _Words) -> bool:
    """ANALYZE TABLE or OPTIMIZE TABLE; ANALYZE alone executes the statement behind it. REPAIR may lose rows."""
    begin = 2 if _at(words, 1).says("local", "no_write_to_binlog") else 1
    return words[0].says("analyze", "optimize") and _at(words, begin).says("table", "tables")


def _at(words: _Words, at: int) -> _Word:
    return words[at] if 0 <= at < len(words) else _END


def _begins(words: _Words, at: int) -> bool:
    """Whether a name may begin there: not behind a point, or at one that has no name before it."""
    before = _at(words, at - 1)
    return not (_is_name(before) if words[at].says(".") else before.says("."))


def _behind_if(words: _Words, at: int) -> int:
    """`at`, or where the name begins behind IF EXISTS or IF NOT EXISTS there."""
    if not _at(words, at).says("if"):
        return at
    return at + (3 if _at(words, at + 1).says("not") else 2)


def _is_name(word: _Word) -> bool:
    return word.kind == "name" or (
        word.kind == "bare" and (word.text[0].isalnum() or word.text[0] in "_$")
    )


def _executed(words: list[_Word]) -> list[_Word]:
    """Without the semicolons at the end, and without SET STATEMENT ... FOR."""
    while words and words[-1].says(";"):
        words.pop()
    while _at(words, 0).says("set") and _at(words, 1).says("statement"):
        depth = 0
        for at, word in enumerate(words):
            depth += word.says("(") - word.says(")")
            if depth == 0 and word.says("for"):
                words = words[at + 1 :]
                break
        else:
            break
    return words


def _token(escape: str) -> re.Pattern[str]:
    texts = (
        rf"{quote}(?:[^{quote}{escape}]|{quote}{quote}{'|' + escape + '.' if escape else ''})*{quote}"
        for quote in "'\""
    )
    return re.compile(
        f"(?P<comment>{_COMMENT})|(?P<text>{'|'.join(texts)})|(?P<name>{_NAME})|(?P<bare>{_BARE})",
        re.DOTALL,
    )


_TOKENS = {True: _token(r"\\"), False: _token("")}


def _words(statement: LoggedStatement) -> Iterator[_Word]:
    has_escapes = not statement.mode & _NO_BACKSLASH_ESCAPES
    for match in _TOKENS[has_escapes].finditer(statement.text):
        token, kind = match[0], match.lastgroup
        if kind == "comment":
            continue
        if kind == "bare":
            yield _Word(token, "bare")
        elif kind == "name":
            yield _Word(token[1:-1].replace("``", "`"), "name")
        elif token[0] == '"' and statement.mode & _ANSI_QUOTES:
            yield _Word(token[1:-1].replace('""', '"'), "name")
        else:
            yield _Word(token[1:-1], "text")
