"""Which type a column widens to: any two types, without a database."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_channel.connectors.base.types import fits, is_longer, widened
from spark_channel.connectors.duckdb.dialect import DuckdbWriteDialect
from spark_channel.connectors.mysql.dialect import MysqlColumn
from spark_channel.connectors.mysql.write.dialect import MysqlWriteDialect
from spark_channel.connectors.postgresql.catalog import PgColumn
from spark_channel.connectors.postgresql.write.dialect import DIALECT as POSTGRES
from spark_channel.connectors.sql.catalog import Column
from spark_channel.connectors.sql.dialect import WriteDialect
from spark_channel.connectors.sqlite.dialect import SqliteWriteDialect
from spark_channel.errors import SchemaError

INTEGERS = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
]
NUMBERS = st.one_of(
    st.sampled_from([*INTEGERS, pa.float32(), pa.float64()]),
    st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))),
)
OTHERS = st.sampled_from(
    [
        pa.string(),
        pa.binary(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us"),
        pa.time64("us"),
        pa.null(),
    ]
)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_integer(kind):
        bits = kind.bit_width
        low, high = (
            (0, 2**bits - 1)
            if pa.types.is_unsigned_integer(kind)
            else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        )
        return st.one_of(st.sampled_from([low, high]), st.integers(low, high))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return st.one_of(st.just(most), st.integers(-most, most)).map(
            lambda number: Decimal(f"{number}E-{kind.scale}")
        )
    return st.floats(width=kind.bit_width, allow_nan=False, allow_infinity=False)


@given(NUMBERS, NUMBERS, st.data())
def test_a_wider_type_holds_each_value_of_both(
    one: pa.DataType, other: pa.DataType, data: st.DataObject
) -> None:
    found = widened(one, other)
    assert found == widened(other, one)
    if found is None:
        is_float = [pa.types.is_floating(kind) for kind in (one, other)]
        assert any(is_float) or {pa.types.is_decimal(one), pa.types.is_decimal(other)} != {False}
        return
    assert widened(found, one) == found == widened(found, other), "what is wide enough stays"
    for kind in (one, other):
        assert fits(kind, found)
        value = data.draw(values(kind))
        (back,) = pa.array([value], kind).cast(found).to_pylist()
        assert back == value


@given(NUMBERS, NUMBERS, NUMBERS)
def test_no_smaller_type_of_the_same_kind_would_do(
    one: pa.DataType, other: pa.DataType, third: pa.DataType
) -> None:
    found = widened(one, other)
    if (
        found is not None
        and fits(one, third)
        and fits(other, third)
        and _kind(third) == _kind(found)
    ):
        assert fits(found, third)


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "unsigned" if pa.types.is_unsigned_integer(kind) else "signed"
    return "float" if pa.types.is_floating(kind) else "decimal"


@given(st.one_of(NUMBERS, OTHERS), OTHERS)
def test_what_is_no_number_has_no_wider_type(one: pa.DataType, other: pa.DataType) -> None:
    assert widened(one, other) is None
    assert widened(other, one) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int64(), pa.float64()),
        (pa.float64(), pa.decimal128(4, 2)),
        (pa.decimal128(38, 0), pa.decimal128(2, 1)),
        (pa.int64(), pa.decimal128(38, 30)),
    ],
)
def test_pairs_of_which_a_value_would_be_lost(one: pa.DataType, other: pa.DataType) -> None:
    assert widened(one, other) is None


@pytest.mark.parametrize(
    ("was", "now", "longer"),
    [
        ("character varying(9)", "VARCHAR(10)", True),
        ("varchar(9)", "varchar(9)", False),
        ("varchar(9)", "varchar(8)", False),
        ("varchar(9)", "text", True),
        ("text", "varchar(9)", False),
        ("char(9)", "varchar(10)", False),
        ("varchar(9)", "char(20)", False),
        ("varchar(9)", "longtext", True),
    ],
)
def test_longer_texts(was: str, now: str, longer: bool) -> None:
    assert is_longer(was, now) is longer


def postgres_column(declared: str) -> Column:
    return POSTGRES.declared_as(PgColumn("n", declared, builtin=True), declared)


DIALECTS: dict[str, tuple[WriteDialect, Any, list[str]]] = {
    "postgresql": (
        POSTGRES,
        postgres_column,
        [
            "smallint",
            "integer",
            "bigint",
            "real",
            "double precision",
            "numeric(6,2)",
            "numeric(38,0)",
            "numeric",
        ],
    ),
    "mysql": (
        MysqlWriteDialect(),
        lambda declared: MysqlColumn("n", declared),
        [
            "tinyint(1)",
            "tinyint(4)",
            "smallint(6) unsigned",
            "mediumint(9)",
            "int(11)",
            "int(10) unsigned",
            "bigint(20)",
            "bigint(20) unsigned",
            "float",
            "double",
            "decimal(6,2)",
            "decimal(65,30)",
            "float(7,3)",
            "year(4)",
            "int(10) unsigned zerofill",
            "decimal(6,2) unsigned",
        ],
    ),
    "duckdb": (
        DuckdbWriteDialect(),
        lambda declared: Column("n", declared),
        [
            "TINYINT",
            "USMALLINT",
            "INTEGER",
            "UINTEGER",
            "BIGINT",
            "UBIGINT",
            "HUGEINT",
            "FLOAT",
            "DOUBLE",
            "DECIMAL(6,2)",
            "DECIMAL(38,10)",
        ],
    ),
    "sqlite": (
        SqliteWriteDialect(),
        lambda declared: Column("n", declared),
        ["INT4", "INTEGER", "REAL", "DECIMAL(6,2)"],
    ),
}


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data(), kind=st.one_of(NUMBERS, OTHERS))
def test_a_column_widens_to_what_takes_the_rows_and_keeps_its_own(
    name: str, kind: pa.DataType, data: st.DataObject
) -> None:
    dialect, column_of, declared = DIALECTS[name]
    column, field = column_of(data.draw(st.sampled_from(declared))), pa.field("n", kind)
    wider = dialect.wider(field, column)
    if wider is None:
        return
    assert name != "sqlite", "which changes no declared type"
    dialect.write_column(field, wider)  # or SchemaError
    assert dialect.wider(field, wider) is None
    was, now = dialect.number_type(column), dialect.number_type(wider)
    assert was is not None
    assert now is not None
    assert fits(was, now)


@pytest.mark.parametrize(
    ("name", "declared", "kind", "wanted"),
    [
        ("postgresql", "integer", pa.int64(), "bigint"),
        ("postgresql", "real", pa.float64(), "double precision"),
        ("postgresql", "numeric(6,2)", pa.decimal128(12, 4), "numeric(12,4)"),
        ("postgresql", "integer", pa.decimal128(4, 2), "numeric(12,2)"),
        ("mysql", "int(11)", pa.int64(), "bigint"),
        ("mysql", "int(10) unsigned", pa.int32(), "bigint"),
        ("mysql", "float", pa.float64(), "double"),
        ("mysql", "tinyint(1)", pa.int32(), "int"),
        ("mysql", "year(4)", pa.int32(), None),
        ("duckdb", "INTEGER", pa.int64(), "BIGINT"),
        ("duckdb", "DECIMAL(6,2)", pa.decimal128(9, 2), "DECIMAL(9,2)"),
        ("postgresql", "text", pa.int64(), None),
        ("postgresql", "money_domain", pa.int64(), None),
        ("sqlite", "INT4", pa.int64(), None),
    ],
)
def test_what_columns_widen_to(
    name: str, declared: str, kind: pa.DataType, wanted: str | None
) -> None:
    dialect, column_of, _ = DIALECTS[name]
    column = (
        PgColumn("n", declared, base="int4", builtin=True)
        if declared == "money_domain"
        else column_of(declared)
    )
    wider = dialect.wider(pa.field("n", kind), column)
    assert (None if wider is None else wider.declared) == wanted


def test_a_column_that_holds_the_rows_stays() -> None:
    dialect, column_of, _ = DIALECTS["postgresql"]
    assert dialect.wider(pa.field("n", pa.int16()), column_of("bigint")) is None
    with pytest.raises(SchemaError):
        dialect.write_column(pa.field("n", pa.int64()), column_of("integer"))
