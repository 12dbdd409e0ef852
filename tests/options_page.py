"""Writes the tables of options into docs/options.md and the connectors' pages, from the option models:
`python -m tests.options_page`.
"""

import re
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from spark_channel.connectors.base.connector import Connector
from spark_channel.connectors.base.registry import all_connectors
from spark_channel.connectors.files.options import (
    FileReadOptions,
    FileWriteOptions,
    TextReadOptions,
)
from spark_channel.connectors.records.reader import RecordReadOptions
from spark_channel.connectors.sql.options import (
    Credentials,
    FileOptions,
    ServerOptions,
    SqlReadOptions,
    SqlWriteOptions,
)
from spark_channel.options import CommonOptions, Options, ReadOptions, WriteOptions
from spark_channel.tunnel.options import TunnelOptions
from tests.contents import with_contents
from tests.systems_table import link_of, own_connectors

DOCS = Path(__file__).resolve().parents[1] / "docs"
SERVICES = "services-options.md"
"""The page with the options of the connectors of services.md, which has no room for them."""
TEST_DATA = ("generator", "discard")
"""Connectors without a page of their own."""
WIDTH = 140
BEGIN, END = "<!-- options -->\n", "<!-- /options -->\n"

HEAD = """# Options

Option names are Spark's camelCase, and their case does not matter. A number of rows is a whole number, `50k` or `1.5M`.
A number of bytes is `64MB` or `64MiB` of Arrow bytes. Times without a unit are seconds. A secret may be
`${env:NAME}` or `${file:PATH}`, and is never shown. A relative path starts in the working directory of Spark's driver.
In the login of a url, write `/ ? # @ :` as `%2F %3F %23 %40 %3A`, or use options `user` and `password`.

An unknown name is an error that shows the nearest known name. Names of Spark and Delta Lake, such as `numPartitions`
and `txnAppId` with `txnVersion`, work, too. `.schema(...)` and `.mode(...)` work as in Spark, which refuses a plain
`.save()` without a mode.

OWN

An option of another source, such as Spark's JDBC source, is **refused** or **ignored**. The error, or the warning,
gives the reason and what to set instead. Below each table is a list of these. A connector's own table and list
override the shared ones.
"""

SERVICES_HEAD = """# Options of services

This page has the options that only the connectors of [Services](services.md) take. They also take
[those of all reads and writes](options.md), and ClickHouse [those of databases](options.md#databases).
"""

Model = type[Options]
Section = tuple[str, str, dict[str, tuple[Model, Model | None]]]
SHARED: tuple[Section, ...] = (
    (
        "Common",
        "Every read and write takes these. See [Limits](limits.md).",
        {"reader": (CommonOptions, None)},
    ),
    (
        "Reading",
        "Every read takes these, besides the common options.",
        {"reader": (ReadOptions, CommonOptions)},
    ),
    (
        "Writing",
        "Every write takes these, besides the common options. See [Commits](commits.md).",
        {"writer": (WriteOptions, CommonOptions)},
    ),
    (
        "Streams and tunnels",
        "See [Streams](streams.md) and [Tunnels](tunnel.md).",
        {"reader": (TunnelOptions, None)},
    ),
    (
        "Databases",
        "`postgresql`, `mysql`, `sqlite`, `duckdb` and `adbc` take these.",
        {"reader": (SqlReadOptions, ReadOptions), "writer": (SqlWriteOptions, WriteOptions)},
    ),
    (
        "Database servers",
        "`postgresql` and `mysql` take these for reading and writing; `adbc` takes `user` and `password`.",
        {"reader": (ServerOptions, None)},
    ),
    (
        "Database files",
        "`sqlite` and `duckdb` take these for reading and writing.",
        {"reader": (FileOptions, None)},
    ),
    (
        "Files",
        "`parquet`, `csv`, `json`, `arrow` and `orc` take these. See [Files](files.md).",
        {"reader": (FileReadOptions, ReadOptions), "writer": (FileWriteOptions, WriteOptions)},
    ),
    (
        "Text files: reading",
        "The readers `csv` and `json` take these, too.",
        {"reader": (TextReadOptions, FileReadOptions)},
    ),
)

RECORDS: Section = (
    "Records: reading",
    "The readers `redis`, `mongodb`, `elasticsearch`, `kafka` and `http` take these.",
    {"reader": (RecordReadOptions, ReadOptions)},
)
"""On the page of services."""

BASES: tuple[Model, ...] = (
    *(model for _, _, halves in (*SHARED, RECORDS) for model, _ in halves.values()),
    Credentials,
)

# What people set first comes first; the rest keeps the order of the models.
FIRST = (
    "rowsPerSecond",
    "bytesPerSecond",
    "protect",
    "sharedLimit",
    "channels",
    "where",
    "columns",
    "commit",
    "txn",
    "maxConnections",
    "maxDirtyRows",
    "url",
    "path",
    "dbtable",
    "query",
    "user",
    "password",
    "writeMode",
    "keyColumns",
    "preSql",
    "postSql",
    "tunnel",
    "cursorColumn",
    "tunnelType",
)


def spelling(model: type[Options], name: str) -> str:
    return model.model_fields[name].alias or name


def meaning(model: type[Options], name: str) -> tuple[str, str]:
    """What a field's description says, and what its part after `; default: ` says of the default."""
    text, _, default = (model.model_fields[name].description or "").partition("; default: ")
    return text, default


def _amount(value: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB")):
        if value >= 1 << power and value % (1 << power) == 0:
            return f"{value >> power}{unit}"
    return str(value)


def default(model: type[Options], name: str) -> str:
    """The default: required, in the description's own text, or the value; never blank."""
    field = model.model_fields[name]
    if field.is_required():
        return "required"
    described, value = meaning(model, name)[1], field.default
    if described:
        return described
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and "bytes" in name:
        return f"`{_amount(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def row(model: type[Options], name: str) -> str:
    shown = spelling(model, name)
    return f"| `{shown}` | {_cell(meaning(model, name)[0])} | {_cell(default(model, name))} |"


def _place(model: type[Options], name: str) -> int:
    shown = spelling(model, name)
    return FIRST.index(shown) if shown in FIRST else len(FIRST)


def own_rows(model: type[Options], shared: Iterable[type[Options]]) -> list[str]:
    """The options of `model` that no shared table has in the same words, and that are not refused."""
    known = {row(base, name) for base in shared for name in base.model_fields}
    refused = {name.lower() for name in model.refused}
    names = sorted(model.model_fields, key=lambda name: _place(model, name))
    refused |= {name.lower() for name in model.silent}
    made = [row(model, name) for name in names if spelling(model, name).lower() not in refused]
    return [line for line in made if line not in known]


def others(model: type[Options], shared: Iterable[type[Options]]) -> dict[str, set[str]]:
    """The names of other sources' options, and of inherited ones, that are refused and that are ignored.

    The reason is in the error or warning of the one who sets it.
    """
    offered = {spelling(model, name).lower() for name in model.model_fields}
    hidden = offered | {name.lower() for name in model.refused}
    refused = set(model.refused).difference(*(base.refused for base in shared))
    ignored = set(model.ignored).difference(*(base.ignored for base in shared))
    return {
        "refused": refused,
        "ignored": {name for name in ignored if name.lower() not in hidden},
    }


def _other_lines(halves: Mapping[str, dict[str, set[str]]]) -> str:
    """What a connector refuses and what it ignores, each as one list: always, in a read, in a write."""
    lines = []
    for what in ("refused", "ignored"):
        found = [half[what] for half in halves.values()]
        both = set.intersection(*found)
        parts = [("", both)]
        if len(found) == 2:
            parts += [(" in a read", found[0] - both), (" in a write", found[1] - both)]
        said = ";".join(f"{use}: {_names(names)}" for use, names in parts if names)
        if said:
            lines.append(_filled(f"- **{what.capitalize()}**{said}.", "  "))
    return "\n".join(("", *lines, "")) if lines else ""


def _filled(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text,
        WIDTH,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _both(model_rows: Mapping[str, list[str]]) -> list[str]:
    """The rows of both halves of a connector, each with what it is for; an option of both halves is one row."""
    read, write = (
        {line.split(" | ")[0]: line for line in model_rows.get(half, [])}
        for half in ("reader", "writer")
    )
    lines = [(_joined(line, write.get(name)), name in write) for name, line in read.items()]
    made = [f"{line} both |" for line, is_both in lines if is_both]
    made += [f"{line} read |" for line, is_both in lines if not is_both]
    return made + [f"{line} write |" for name, line in write.items() if name not in read]


def _joined(read: str, write: str | None) -> str:
    """One row of an option for reading and writing; a cell that differs says both."""
    if write in (None, read):
        return read
    assert write is not None
    cells = [each.strip("| ").split(" | ") for each in (read, write)]
    name, meaning, value = (
        one if one == other else f"in a read: {one}; in a write: {other}"
        for one, other in zip(*cells, strict=True)
    )
    return f"| {name} | {meaning} | {value} |"


def _block(heads: str, lines: list[str]) -> str:
    return (
        "\n".join(("", f"| {heads} |", "|" + "---|" * (heads.count("|") + 1), *lines, ""))
        if lines
        else ""
    )


OPTION = "option | meaning | default"


def connector_tables(connector: Connector) -> str:
    """What a connector takes besides the shared options, and what it refuses or ignores; empty if nothing."""
    own: dict[str, list[str]] = {}
    more: dict[str, dict[str, set[str]]] = {}
    for half in ("reader", "writer"):
        if getattr(connector, half) is None:
            continue
        options = connector.options_class(half)
        shared = [base for base in BASES if issubclass(options, base)]
        own[half], more[half] = own_rows(options, shared), others(options, shared)
    return _block(f"{OPTION} | for", _both(own)) + _other_lines(more)


def shared_section(title: str, about: str, halves: dict[str, tuple[Model, Model | None]]) -> str:
    """The options that several connectors take."""
    own: dict[str, list[str]] = {}
    more: dict[str, dict[str, set[str]]] = {}
    for half, (model, base) in halves.items():
        bases = [base] if base else []
        own[half], more[half] = own_rows(model, bases), others(model, bases)
    if len(halves) == 2:
        table = _block(f"{OPTION} | for", _both(own))
    else:
        table = "".join(_block(OPTION, lines) for lines in own.values())
    return f"\n## {title}\n\n{about}\n{table}{_other_lines(more)}"


def options_page() -> str:
    links = [
        f"[`{name}`]({page}#{'options-of-several-connectors' if name in few(tables) else f'options-of-{name}'})"
        for page, tables in by_page().items()
        for name in tables
    ]
    own = f"Each connector's page ends with its other options: {', '.join(sorted(links))}."
    sections = [shared_section(*each) for each in SHARED]
    rows = {
        match[1]: row
        for row in "".join(sections).split("\n")
        if (match := _NAME.match(row)) is not None
    }
    first = _block(OPTION, ["|".join(rows[name].split("|")[:4]) + "|" for name in TWELVE])
    text = HEAD.replace("OWN", _filled(own)) + f"\n## The twelve that people set\n{first}"
    return with_contents(text + "".join(_folded(each, TWELVE) for each in sections))


TWELVE = (
    *("rowsPerSecond", "bytesPerSecond", "protect", "sharedLimit", "channels", "where", "columns"),
    *("partitionColumn", "commit", "txn", "writeMode", "maxDirtyRows"),
)
_NAME = re.compile(r"\| `(\w+)`")


def _folded(section: str, shown: Container[str] = ()) -> str:
    """The section with its table and lists behind a line that opens them, without rows that are `shown` above."""
    head, bar, whole = section.partition("\n| option")
    rows = [
        (match and match[1], line) for line in whole.split("\n") for match in [_NAME.match(line)]
    ]
    table = "\n".join(line for name, line in rows if name not in shown)
    count = sum(1 for name, _ in rows if name and name not in shown)
    which = "All" if table == whole else "The other"
    others = ", and what is refused or ignored" if "\n- **" in table else ""
    summary = f"<details markdown><summary>{which} {count}{others}</summary>\n"
    return f"{head}\n{summary}{bar}{table.rstrip()}\n\n</details>\n"


def services_page(tables: Mapping[str, str]) -> str:
    """`tables`: those of the connectors of services.md."""
    found = {each.name: connector_tables(each) for each in all_connectors()}
    lines = [line for name in TEST_DATA for line in found[name].splitlines() if "`" in line]
    test_data = f"\n### {' and '.join(TEST_DATA)}\n{_block(f'{OPTION} | for', lines)}"
    sections = (shared_section(*RECORDS), "\n", together(tables), test_data)
    parts = "".join(sections).replace("\n### ", "\n## ").split("\n## ")
    folded = (_folded(f"\n## {each}") for each in parts[1:])
    return with_contents(SERVICES_HEAD + parts[0] + "".join(folded))


def page_of(connector: str) -> str:
    """The page with the tables of a connector."""
    page = link_of(connector).partition("#")[0]
    if page == "services.md":
        return SERVICES
    return page if (DOCS / page).exists() else "files.md"


def by_page() -> dict[str, dict[str, str]]:
    """The tables of the connectors of each page."""
    sections: dict[str, dict[str, str]] = {}
    for name, connector in sorted(own_connectors().items()):
        if tables := connector_tables(connector):
            sections.setdefault(page_of(name), {})[name] = tables
    return sections


def owners(tables: Mapping[str, str]) -> dict[str, list[str]]:
    """The connectors of each row."""
    found: dict[str, list[str]] = {}
    for name, text in tables.items():
        for line in text.splitlines():
            if line.startswith("| `"):
                found.setdefault(line, []).append(name)
    return found


def few(tables: Mapping[str, str]) -> list[str]:
    """The connectors of a page that have no section, since they have at most two rows that no other has."""
    alone = Counter(names[0] for names in owners(tables).values() if len(names) == 1)
    return [name for name in tables if len(tables) > 1 and alone[name] <= 2]


def together(tables: Mapping[str, str]) -> str:
    """The sections of the connectors of one page. A table before them has the rows of several, and of small ones."""
    small = few(tables)
    shared = {
        line: names for line, names in owners(tables).items() if len(names) > 1 or names[0] in small
    }
    if len(shared) < 3 and not small:
        shared = {}
    parts = []
    if shared:
        rows = [
            f"{line} {', '.join(f'`{each}`' for each in names)} |" for line, names in shared.items()
        ]
        lists = [_list_of(tables[name]).replace("- **", f"- `{name}`: **") for name in small]
        table = _block(f"{OPTION} | for | of", rows)
        parts.append(f"### Options of several connectors\n{table}{_list_block(lists)}")
    for name, text in tables.items():
        if name not in small:
            rows = [line for line in owners({name: text}) if line not in shared]
            own = _block(f"{OPTION} | for", rows) + _list_block([_list_of(text)])
            parts.append(f"### Options of `{name}`\n{own}")
    return "\n".join(parts)


def _list_of(text: str) -> str:
    """What a connector refuses and ignores, out of its tables."""
    _, start, rest = text.partition("- **")
    return (start + rest).rstrip("\n")


def _list_block(lists: Iterable[str]) -> str:
    text = "\n".join(filter(None, lists))
    return f"\n{text}\n" if text else ""


def pages() -> dict[Path, str]:
    """Each page with tables of options, in its correct form."""
    made = {DOCS / "options.md": options_page()}
    sections = by_page()
    made[DOCS / SERVICES] = services_page(sections.pop(SERVICES))
    for name, found in sections.items():
        head, rest = (DOCS / name).read_text(encoding="utf-8").split(BEGIN, 1)
        made[DOCS / name] = f"{head}{BEGIN}{together(found)}{END}{rest.split(END, 1)[1]}"
    return made


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
