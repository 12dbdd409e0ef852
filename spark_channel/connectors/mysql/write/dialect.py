"""MySQL's SQL for writing: declarations of new columns, and the values that a column holds exactly."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import pyarrow as pa

from spark_channel.arrow_schema import UNLIMITED, is_text
from spark_channel.connectors.base.definition import ConstraintDefinition
from spark_channel.connectors.base.feed import OPERATION
from spark_channel.connectors.base.types import fits, plain_kind
from spark_channel.connectors.mysql.dialect import (
    MysqlColumn,
    MysqlDialect,
    MysqlTable,
    declared_in,
)
from spark_channel.connectors.mysql.options import MysqlWriteOptions
from spark_channel.connectors.mysql.session import code_of, quoted
from spark_channel.connectors.mysql.types import (
    arrow_type,
    check_values,
    is_text_type,
    is_wide_decimal,
    parts,
)
from spark_channel.connectors.mysql.types.arrow import (
    INSTANT,
    LOCAL,
    MOST_SCALE,
    SIGNED,
    SPARK_DIGITS,
    TIME,
    UNSIGNED,
)
from spark_channel.connectors.mysql.write.references import reaching_keys
from spark_channel.connectors.sql.catalog import (
    Column,
    Declared,
    Table,
    TargetTable,
    WriteColumn,
    declared_columns,
)
from spark_channel.connectors.sql.dialect import WriteDialect, misfit, wrong_table_options
from spark_channel.connectors.sql.options import SqlWriteOptions
from spark_channel.connectors.sql.session import TRANSACTION_WORDS, Session, split_script
from spark_channel.connectors.sql.write.checks import reached_by_delete
from spark_channel.errors import OptionError, SchemaError, TargetError

__all__ = [
    "COMMITTING_WORDS",
    "MysqlWriteDialect",
    "check_one_zone",
    "check_transactional",
    "staged_columns",
]

_NAME_LETTERS = 64
_MOST_LETTERS, _KEY_LETTERS = 16_383, 768
_KEY_LENGTH = 255
"""Letters, or bytes, of a column of a new key."""
"""Of four bytes each."""
_TOO_LONG = (1074, 1118)
"""A column, or a row, would be longer than the server's limit."""
_NUMBERS = frozenset(
    {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double"}
)
_OPTION = r"\s*([A-Za-z_]+)\s*=\s*([A-Za-z0-9_]+)\s*,?"
_OPTION_WORDS = frozenset(
    {
        "ROW_FORMAT",
        "KEY_BLOCK_SIZE",
        "AUTO_INCREMENT",
        "STATS_PERSISTENT",
        "STATS_AUTO_RECALC",
        "STATS_SAMPLE_PAGES",
        "PAGE_COMPRESSED",
        "PAGE_COMPRESSION_LEVEL",
        "ENCRYPTED",
        "ENCRYPTION_KEY_ID",
        "COMPRESSION",
        "DATA",
        "INDEX",
    }
)
COMMITTING_WORDS = TRANSACTION_WORDS | {
    "ALTER",
    "ANALYZE",
    "CHANGE",
    "CHECK",
    "CREATE",
    "DROP",
    "FLUSH",
    "GRANT",
    "INSTALL",
    "LOCK",
    "OPTIMIZE",
    "RENAME",
    "REPAIR",
    "RESET",
    "REVOKE",
    "STOP",
    "TRUNCATE",
    "UNINSTALL",
    "UNLOCK",
}
"""First words of statements that commit the transaction in which they run."""


def staged_columns(target: TargetTable) -> tuple[WriteColumn, ...]:
    """The staged columns, and the operation."""
    if target.operation is None:
        return target.columns
    column = MysqlColumn(OPERATION, "varchar(16)", charset="utf8mb4", collation="utf8mb4_bin")
    return (*target.columns, WriteColumn(OPERATION, column, pa.string()))


def check_transactional(session: Session, table: MysqlTable) -> None:
    """Check that the table's engine has transactions.

    Raises:
        TargetError: it has none.
    """
    engines = session.rows(
        "SELECT engine FROM information_schema.engines WHERE transactions = 'YES'"
    )
    if table.engine is None or table.engine.lower() not in {
        str(name).lower() for (name,) in engines
    }:
        raise TargetError(
            f"table {table.label!r} has the engine {table.engine}, which has no transactions: "
            "a failed write would leave half of it. Make it InnoDB with ALTER TABLE ... ENGINE=InnoDB"
        )


def check_one_zone(target: TargetTable) -> None:
    """Check that the times of one row are written in one zone of the session: instants are written in UTC.

    Raises:
        SchemaError: instants beside local times that the session's zone makes instants of.
    """
    times = [column for column in target.columns if pa.types.is_timestamp(column.kind)]
    instant = next((column for column in times if column.kind.tz is not None), None)
    local = next(
        (
            column
            for column in times
            if column.kind.tz is None and parts(column.declared)[0] == "timestamp"
        ),
        None,
    )
    if instant is not None and local is not None:
        raise SchemaError(
            f"column {local.name!r} is a local time for the TIMESTAMP column {local.target!r}, and column "
            f"{instant.name!r} is an instant: they cannot be written together. Cast one of them in the source"
        )


class MysqlWriteDialect(MysqlDialect, WriteDialect):
    """See `WriteDialect`."""

    most_columns = 1017  # InnoDB's
    index_name_bytes = 64
    adds_keys = True
    begin = "START TRANSACTION"
    ddl_commits = True

    new_types: ClassVar = {
        **{kind: declared for declared, kind in SIGNED.items() if declared != "mediumint"},
        **{
            kind: f"{declared} unsigned"
            for declared, kind in UNSIGNED.items()
            if declared != "mediumint"
        },
        pa.bool_(): "tinyint(1)",
        pa.float16(): "float",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        TIME: "time(6)",
        LOCAL: "datetime(6)",
        INSTANT: "timestamp(6)",
        pa.string(): "longtext",
        pa.binary(): "longblob",
    }
    new_key_types: ClassVar = {
        pa.string(): f"varchar({_KEY_LENGTH})",
        pa.binary(): f"varbinary({_KEY_LENGTH})",
    }

    def check_alone(self, session: Session, schema: str, name: str) -> None:
        for key, space, table, rule, columns in reaching_keys(session, (schema, name)):
            other = f"{quoted(str(space))}.{quoted(str(table))}"
            filled = " AND ".join(
                f"{quoted(column)} IS NOT NULL" for column in str(columns).split("/")
            )
            if session.rows(f"SELECT 1 FROM {other} WHERE {filled} LIMIT 1"):  # noqa: S608 - quoted names
                raise reached_by_delete(f"{schema}.{name}", str(key), f"{space}.{table}", str(rule))

    def check_values(self, values: pa.Array, column: WriteColumn) -> None:
        check_values(values, column)

    def new_decimal(self, digits: int, scale: int) -> str | None:
        return f"decimal({digits},{scale})" if digits <= SPARK_DIGITS else None

    def created_type(self, name: str, kind: pa.DataType, *, key: bool) -> str:
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        plain = plain_kind(storage)
        if (
            pa.types.is_decimal(plain)
            and MOST_SCALE < plain.scale <= plain.precision <= SPARK_DIGITS
        ):
            raise SchemaError(
                f"column {name!r} is {kind}: MySQL keeps {MOST_SCALE} digits after the point; cast it"
            )
        return super().created_type(name, storage, key=key)

    def spark_type(self, text: str) -> str | None:
        return text.lower() if text.upper().startswith(("VARCHAR(", "CHAR(")) else None

    def new_column(self, name: str, declared: str, *, not_null: bool) -> Column:
        if len(name) > _NAME_LETTERS:
            raise SchemaError(
                f"column {name!r} has a name of more than {_NAME_LETTERS} letters; rename it"
            )
        text = is_text_type(declared)
        return MysqlColumn(
            name,
            declared,
            not_null,
            charset="utf8mb4" if text else None,
            collation="utf8mb4_bin" if text else None,
        )

    def definition(self, column: Column) -> str:
        assert isinstance(column, MysqlColumn)
        words = [self.quoted(column.name), column.declared]
        if column.charset is not None and parts(column.declared)[0] not in (
            "json",
            "uuid",
            "inet4",
            "inet6",
        ):
            words.append(f"CHARACTER SET {column.charset} COLLATE {column.collation}")
        return " ".join([*words, "NOT NULL" if column.not_null else "NULL"])

    def not_indexed(self, field: pa.Field) -> str:
        """A column of texts or bytes has no bound that an index could have."""
        plain = plain_kind(field.type)
        is_unbounded = pa.types.is_string(plain) or pa.types.is_binary(plain)
        return f"column {field.name} has no length that an index takes" if is_unbounded else ""

    def not_unique(self, column: Column) -> str:
        name, _, _ = parts(column.declared)
        if name != "json" and not name.endswith(("text", "blob")):
            return ""
        return (
            f"MariaDB makes it of column {column.name}, which is {column.declared}, "
            f"and MySQL only of a type with a length, such as varchar({_KEY_LENGTH})"
        )

    def not_keyed(self, field: pa.Field, length: str | None) -> str:
        is_short = length is not None and length != UNLIMITED and int(length) <= _KEY_LENGTH
        reason = "" if is_short else self.not_indexed(field)
        return f"{reason}: the option createTable=keys gives it {_KEY_LENGTH}" if reason else ""

    def after_create(self, options: SqlWriteOptions) -> str:
        """`createTableOptions` is a list of NAME=word."""
        assert isinstance(options, MysqlWriteOptions)
        comment = (
            ""
            if options.table_comment is None
            else f" COMMENT={self.literal(options.table_comment, None)}"
        )
        text = options.create_table_options or ""
        pairs = re.findall(_OPTION, text)
        if re.sub(_OPTION, "", text).strip() or any(
            name.upper() not in _OPTION_WORDS for name, _ in pairs
        ):
            takes = "NAME=value of " + ", ".join(sorted(_OPTION_WORDS))
            raise wrong_table_options(text, takes, ". New tables are InnoDB and utf8mb4")
        words = "".join(f" {name}={value}" for name, value in pairs)
        return f" ENGINE=InnoDB CHARACTER SET utf8mb4{comment}{words}"

    def find_columns(self, session: Session, target: TargetTable) -> Declared:
        """By one statement: a task's transaction waits for it."""
        return declared_in(session, target.schema, target.name)

    def columns_as_created(self, table: Table) -> Declared:
        """Without the key that MySQL adds with sql_generate_invisible_primary_key = ON."""
        columns = cast(tuple[MysqlColumn, ...], table.columns)
        added = {
            column.name
            for column in columns
            if column.invisible and column.numbered and (column.name,) == table.primary
        }
        return tuple(
            (name, declared) for name, declared in declared_columns(table) if name not in added
        )

    def write_column(self, field: pa.Field, column: Column) -> WriteColumn:
        natural = self.created_type(field.name, field.type, key=False)
        name, sizes, _ = parts(column.declared)
        row_type = arrow_type(field.name, natural)
        if name == "decimal":
            precision, scale = (int(size) for size in (*sizes, "0")[:2]) if sizes else (10, 0)
            column_type: pa.DataType = pa.decimal256(precision, scale)
            if pa.types.is_decimal(row_type):
                row_type = pa.decimal256(row_type.precision, row_type.scale)
        else:
            column_type = arrow_type(column.name, column.declared)
            if (
                pa.types.is_boolean(column_type)
                and name == "tinyint"
                and not pa.types.is_boolean(row_type)
            ):
                column_type = pa.int8()  # TINYINT(1) holds whatever a TINYINT does
        if not fits(row_type, column_type) or (name in ("float", "double") and sizes):
            raise misfit(field, column, column_type, natural=natural)
        return WriteColumn(field.name, column, field.type)

    def lenient_column(self, field: pa.Field, column: Column) -> WriteColumn:
        local = pa.types.is_timestamp(field.type) and field.type.tz is None
        if local and parts(column.declared)[0] == "timestamp":
            # The server reads its text in the session's zone.
            return WriteColumn(field.name, column, field.type)
        if is_wide_decimal(column.declared) and is_text(field.type):
            return WriteColumn(field.name, column, field.type)  # the server reads the number
        name, sizes, _ = parts(column.declared)
        if name in ("float", "double") and sizes and pa.types.is_floating(field.type):
            # The server rounds to its digits, and refuses what is larger.
            return self.write_column(field, replace(column, declared=name))
        return self.write_column(field, column)

    def number_type(self, column: Column) -> pa.DataType | None:
        name, sizes, unsigned = parts(column.declared)
        is_float = name in ("float", "double")
        if name not in _NUMBERS or "zerofill" in column.declared or (is_float and sizes):
            return None
        if unsigned and (is_float or name == "decimal"):
            return None
        if name == "tinyint":  # TINYINT(1) too
            return pa.uint8() if unsigned else pa.int8()
        try:
            return arrow_type(column.name, column.declared)
        except SchemaError:
            return None  # more digits than Arrow's decimals have

    def text_type(self, table: Table, column: Column, length: str) -> str | None:
        """A key takes no `longtext`, and 3072 bytes at most."""
        most = _KEY_LETTERS if column.name in table.indexed else _MOST_LETTERS
        if length != UNLIMITED and int(length) <= most:
            return f"varchar({length})"
        return "longtext" if most == _MOST_LETTERS else None

    def instead(self, error: BaseException, declared: str) -> str:
        """A row has 65 535 bytes, with all its `varchar`s at their longest; of a `longtext` only 12 count."""
        return (
            "longtext"
            if code_of(error) in _TOO_LONG and declared.startswith("varchar")
            else declared
        )

    def retyped(self, table: str, column: Column, declared: str) -> str:
        definition = self.definition(replace(column, declared=declared))
        return f"ALTER TABLE {table} MODIFY COLUMN {definition} /* DEFAULT and COMMENT as before */"

    def retype(self, session: Session, table: str, column: Column, declared: str) -> str | None:
        """MODIFY takes the whole definition, and forgets what it does not repeat: so as the server shows it."""
        ending = self._behind(session, table, column)
        if ending is None:
            return None
        return f"ALTER TABLE {table} MODIFY COLUMN {self.quoted(column.name)} {declared}{ending}"

    def _behind(self, session: Session, table: str, column: Column) -> str | None:
        """What the server shows of a column behind its type; None = it shows it in another form."""
        create_sql = str(session.rows(f"SHOW CREATE TABLE {table}")[0][1])
        begins = f"  {self.quoted(column.name)} {column.declared}"
        for line in create_sql.split("\n"):
            if line.startswith(begins) and line[len(begins) : len(begins) + 1] in ("", " ", ","):
                return line[len(begins) :].rstrip(",")
        return None

    def loosen(self, session: Session, table: str, column: Column) -> Sequence[str]:
        """NOT NULL stands before what may have a text, a default or a comment."""
        ending = self._behind(session, table, column)
        if ending is None:
            raise TargetError(
                "the server shows its definition in a form that cannot be repeated without loss"
            )
        definition = (
            f"{self.quoted(column.name)} {column.declared}{ending.replace(' NOT NULL', ' NULL', 1)}"
        )
        return (f"ALTER TABLE {table} MODIFY COLUMN {definition}",)

    def commits(self, texts: Iterable[str], option: str) -> bool:
        try:
            split_script(texts, option, self.sql, COMMITTING_WORDS)
        except OptionError:
            return True
        return False

    def stated(self, constraint: ConstraintDefinition, name: str, table: str, indexed: str) -> str:
        """`text` of an index has its name, which is the table's alone."""
        named = constraint.kind == "check" and constraint.has_name
        name = f"CONSTRAINT {self.quoted(constraint.name)} " if named else ""
        return f"ALTER TABLE {table} ADD {name}{constraint.text}"

    def not_null(self, table: str, column: str, declared: str) -> str:
        definition = f"{self.quoted(column)} {declared} NOT NULL"
        return f"ALTER TABLE {table} MODIFY COLUMN {definition} /* DEFAULT and COMMENT as before */"

    def dropped_key(self, table: str, name: str) -> str:
        """As servers of each version say it."""
        return f"ALTER TABLE {table} DROP FOREIGN KEY {self.quoted(name)}"

    def nullable(self, table: str, column: Column) -> str:
        definition = self.definition(replace(column, not_null=False))
        return f"ALTER TABLE {table} MODIFY COLUMN {definition}"

    def is_same_type(self, found: str, planned: str) -> bool:
        """Servers add display widths to integers: `int` is shown as `int(11)`."""
        bare, planned_type = (
            re.sub(
                r"^((?:small|medium|big)?int|tinyint)(?:\((?!1\))\d+\))", r"\1", declared.lower()
            )
            for declared in (found, planned)
        )
        return bare == planned_type
