"""What a statement in the binary log means for one table. Pure.

With rows in the log, statements are what changes tables as a whole: TRUNCATE, and DDL. A statement that changes rows
is there only if a session has switched to another format.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["TRUNCATES", "effect_of"]

TRUNCATES = "truncates"

_TOKEN = re.compile(
    r"/\*(?!M?!).*?\*/|/\*M?!\d*|\*/|--[ \t][^\n]*|\#[^\n]*|'(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\""
    r"|`(?:[^`]|``)*`|[\w$@\u0080-\uffff]+|\S",
    re.DOTALL,
)
_COMMENT = ("/*", "*/", "--", "#")
_READS = 4096
"""Characters in which a DDL statement names its tables."""
_ROWS = frozenset({"insert", "replace", "update", "delete", "load", "with", "call", "execute"})
_OF_PARTITIONS = frozenset({"truncate", "drop", "exchange", "discard", "import", "convert"})


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    quoted: bool

    def says(self, *words: str) -> bool:
        return not self.quoted and self.text.lower() in words


def effect_of(statement: str, default: str, database: str, table: str, *, folds: bool = False) -> str | None:
    """None: it does nothing to the rows of `database.table`; TRUNCATES; else why the table cannot be followed on.

    `default`: the database of names without one. `folds`: names of tables are equal in any case.
    """
    words = list(_words(statement[:_READS]))
    if not words:
        return None
    ours = _Ours(default, database, table, folds)
    first = words[0].text.lower()
    if first in _ROWS:
        named = re.search(rf"(?<![\w$]){re.escape(table)}(?![\w$])", statement, re.IGNORECASE)
        return "changes its rows by a statement, and not by rows" if named else None
    if first == "truncate":
        names = words[2:] if len(words) > 1 and words[1].says("table") else words[1:]
        return TRUNCATES if ours.at(names, 0) else None
    if first == "drop":
        return _drop(words, ours)
    if first == "rename" and len(words) > 1 and words[1].says("table", "tables"):
        return "renames it" if ours.anywhere(words[2:]) else None
    if first == "create":
        return _create(words, ours)
    if first == "alter":
        return _alter(words, ours)
    return None


class _Ours:
    """Recognises the name of the table."""

    def __init__(self, default: str, database: str, table: str, folds: bool) -> None:
        self._folds = folds
        self.database, self._table = self.same(database), self.same(table)
        self._is_default = self.same(default) == self.database

    def same(self, name: str) -> str:
        return name.lower() if self._folds else name

    def at(self, words: Sequence[_Word], place: int) -> bool:
        """Whether a name begins at `place`, and is the table's."""
        if place >= len(words):
            return False
        name = self.same(words[place].text)
        if place + 2 < len(words) and words[place + 1].says("."):
            return name == self.database and self.same(words[place + 2].text) == self._table
        return self._is_default and name == self._table

    def anywhere(self, words: Sequence[_Word]) -> bool:
        return any(
            self.at(words, place) for place in range(len(words)) if not (place and words[place - 1].says("."))
        )


def _drop(words: Sequence[_Word], ours: _Ours) -> str | None:
    if len(words) < 3:
        return None
    if words[1].says("database", "schema"):
        return "drops its database" if ours.same(words[-1].text.rstrip(";")) == ours.database else None
    return "drops it" if words[1].says("table", "tables") and ours.anywhere(words[2:]) else None


def _create(words: Sequence[_Word], ours: _Ours) -> str | None:
    """A table that was not there has lost no rows."""
    is_replaced = len(words) > 4 and words[1].says("or") and words[3].says("table")
    return "creates it again" if is_replaced and ours.at(words, 4) else None


def _alter(words: Sequence[_Word], ours: _Ours) -> str | None:
    place = next((number for number, word in enumerate(words[:4]) if word.says("table")), None)
    if place is None:
        return None
    rest = words[place + 1 :]
    if rest and rest[0].says("if"):
        rest = rest[2:]
    own = ours.at(rest, 0)
    name_ends = 3 if len(rest) > 1 and rest[1].says(".") else 1
    actions = rest[name_ends:]
    for number, word in enumerate(actions):
        after = actions[number + 1] if number + 1 < len(actions) else None
        if after is None or not (own or ours.anywhere(actions[number + 1 :])):
            continue
        if word.says("rename") and not after.says("column", "index", "key"):
            return "renames it"
        if word.says(*_OF_PARTITIONS) and after.says("partition", "tablespace"):
            return "removes or replaces rows of whole partitions"
    return None


def _words(text: str) -> list[_Word]:
    found = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token.startswith(_COMMENT):
            continue
        if token[0] == "`":
            found.append(_Word(token[1:-1].replace("``", "`"), True))
        elif token[0] in "'\"":
            found.append(_Word(token[1:-1], True))
        else:
            found.append(_Word(token, False))
    return found
