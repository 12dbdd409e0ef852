"""Connector/J's parameter `sessionVariables`: assignments at the start of every session."""

import re

import sqlglot
from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

from spark_channel.errors import OptionError

__all__ = ["session_variables"]


def session_variables(text: str) -> str:
    """The assignments of `sessionVariables`, as SET SESSION takes them. Connector/J takes `;` between them, too.

    Raises:
        OptionError: no assignments.
    """
    takes = "name=value pairs with commas between, such as sql_mode='ANSI',time_zone='+08:00'"
    try:
        tokens = sqlglot.tokenize(text, read="mysql")
    except sqlglot.errors.SqlglotError:
        tokens = []
    parts, begin, depth = [], 0, 0
    for token in tokens:
        depth += {TokenType.L_PAREN: 1, TokenType.R_PAREN: -1}.get(token.token_type, 0)
        if depth == 0 and token.token_type in (TokenType.COMMA, TokenType.SEMICOLON):
            parts.append(text[begin : token.start].strip())
            begin = token.end + 1
    parts.append(text[begin:].strip())
    if not all(re.match(r"(@{0,2}[\w.]+)\s*:?=\s*\S", part) for part in parts):
        raise OptionError(
            f"option 'sessionVariables' got {text!r}; it takes {takes}",
            option="sessionVariables", got=text, takes=takes,
        )  # fmt: skip
    return ", ".join(part.removeprefix("@@session.").removeprefix("@@") for part in parts)
