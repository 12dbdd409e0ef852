"""From rows in a staging or temporary table into the target, as `writeMode` says: the statements. Pure."""

from spark_channel.connectors.sql.postgresql.options import PostgresWriteOptions
from spark_channel.connectors.sql.postgresql.staging import DELETES, ORDER
from spark_channel.connectors.sql.postgresql.target import written_columns
from spark_channel.connectors.sql.statements import identifier
from spark_channel.connectors.sql.target import Target

__all__ = ["keys_sql", "merge_statements", "null_key_query", "twice_query"]


def _name(name: str) -> str:
    return identifier(name).sql("postgres")


def _list(names: tuple[str, ...] | list[str], prefix: str = "") -> str:
    return ", ".join(prefix + _name(name) for name in names)


def keys_sql(target: Target) -> str:
    return _list(target.key)


def merge_statements(target: Target, rows: str, options: PostgresWriteOptions) -> list[str]:
    """What brings the rows of the table `rows` (SQL) into the target."""
    if options.write_mode == "apply":
        return _apply(target, rows)
    conflict = ""
    if options.write_mode == "upsert":
        conflict = _update(target)
    elif options.write_mode == "skipExisting":
        conflict = f" ON CONFLICT ({keys_sql(target)}) DO NOTHING"
    return [f"{_insert(target)} SELECT {_values(target)} FROM {rows}{conflict}"]  # noqa: S608 - quoted names


def _insert(target: Target) -> str:
    numbered = any(column.column.identity == "a" for column in written_columns(target))
    override = " OVERRIDING SYSTEM VALUE" if numbered else ""
    return f"INSERT INTO {target.sql} ({_list(target.names)}){override}"


def _values(target: Target) -> str:
    return ", ".join(
        f"CAST({_name(column.target)} AS {column.column.declared})" if column.cast else _name(column.target)
        for column in written_columns(target)
    )


def _update(target: Target) -> str:
    others = [name for name in target.names if name not in target.key]
    if not others:
        return f" ON CONFLICT ({keys_sql(target)}) DO NOTHING"
    changes = ", ".join(f"{_name(name)} = EXCLUDED.{_name(name)}" for name in others)
    return f" ON CONFLICT ({keys_sql(target)}) DO UPDATE SET {changes}"


def _apply(target: Target, rows: str) -> list[str]:
    """The last change of each key counts: its delete, or its row."""
    key = keys_sql(target)
    last = f"SELECT DISTINCT ON ({key}) * FROM {rows} ORDER BY {key}, {ORDER} DESC"  # noqa: S608 - quoted names
    casts = {column.target: column for column in written_columns(target)}
    same = " AND ".join(
        f"t.{_name(name)} = "
        + (
            f"CAST(r.{_name(name)} AS {casts[name].column.declared})"
            if casts[name].cast
            else f"r.{_name(name)}"
        )
        for name in target.key
    )
    return [
        f"DELETE FROM {target.sql} t USING ({last}) r WHERE r.{DELETES} AND {same}",  # noqa: S608
        f"{_insert(target)} SELECT {_values(target)} FROM ({last}) r WHERE NOT r.{DELETES}{_update(target)}",  # noqa: S608
    ]


def null_key_query(target: Target, rows: str) -> str:
    """A row when some key column is NULL."""
    empty = " OR ".join(f"{_name(name)} IS NULL" for name in target.key)
    return f"SELECT 1 FROM {rows} WHERE {empty} LIMIT 1"  # noqa: S608 - quoted names


def twice_query(target: Target, rows: str) -> str:
    """A key that stands there twice, as text, and how often."""
    shown = ", ".join(f"{_name(name)}::text" for name in target.key)
    return (
        f"SELECT count(*), concat_ws(', ', {shown}) FROM {rows} GROUP BY {keys_sql(target)} "  # noqa: S608
        "HAVING count(*) > 1 LIMIT 1"
    )
