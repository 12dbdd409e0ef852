"""Tables of Delta Lake as Spark makes them, one for each feature. `{t}` is the table's name, `{path}` its folder."""

from dataclasses import dataclass

__all__ = ["DELTAS", "Made"]


@dataclass(frozen=True)
class Made:
    """A table, and what the connector is expected to do with it.

    `read` and `write` are what the refusal says, of a read and of every write; `replace` that of an overwrite and an
    upsert only. An empty text: it does it.
    """

    name: str
    sql: tuple[str, ...]
    read: str = ""
    write: str = ""
    replace: str = ""
    key: str = "id"
    query: str = "SELECT * FROM {t}"
    suffix: str = ""
    """What the name of the table that is read has more than `{t}`."""
    system: str = "delta"
    default: int | None = None
    """Of a column `n` that the table gets afterwards."""


def _table(columns: str, *sql: str, more: str = "", **properties: str) -> tuple[str, ...]:
    texts = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
    settings = f"TBLPROPERTIES ({texts})" if texts else ""
    create = f"CREATE TABLE {{t}} ({columns}) USING delta {more} LOCATION '{{path}}' {settings}"
    return (create, *sql)


_ROWS = "INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'ü')"
_TWO = "id BIGINT, s STRING"
_VECTORS = {"enableDeletionVectors": "true"}
_ODD = "'a b', 'a/b', 'a=b', '100%', 'ü', '日本', 'x:y', '\"q\"', \"it's\", '#?&', '.', '__x', '%41', 'a+b', '\\\\\\\\'"

DELTAS = (
    Made(
        "every_type",
        _table(
            "id BIGINT, bo BOOLEAN, ti TINYINT, sm SMALLINT, i INT, f FLOAT, d DOUBLE, de DECIMAL(38,18), st STRING, "
            "bi BINARY, da DATE, ts TIMESTAMP",
            "INSERT INTO {t} VALUES (1, true, 127S, 32767S, 2147483647, float('nan'), double('-Infinity'), "
            "12345678901234567890.123456789012345678, 'ü\\u0000x', X'00ff', DATE'9999-12-31', "
            "TIMESTAMP'9999-12-31 23:59:59.999999Z'), (2, false, -128S, -32768S, -2147483648, float('-0.0'), "
            "double('1e-320'), -0.000000000000000001, '', X'', DATE'0001-01-01', TIMESTAMP'0001-01-01 00:00:00Z'), "
            "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), "
            "(9223372036854775807, true, 0, 0, 0, 1.5, 0.1, 0, 'a', X'61', DATE'1582-10-10', "
            "TIMESTAMP'1900-01-01 00:00:00Z')",
        ),
    ),
    Made(
        "timestamp_ntz",
        _table(
            "id BIGINT, ts TIMESTAMP_NTZ, n STRUCT<t: TIMESTAMP_NTZ>",
            "INSERT INTO {t} VALUES (1, TIMESTAMP_NTZ'2024-03-31 02:30:00.000001', named_struct('t', "
            "TIMESTAMP_NTZ'1583-01-01 00:00:00')), (2, NULL, NULL)",
        ),
    ),
    Made(
        "nested",
        _table(
            "id BIGINT, n STRUCT<a: INT, b: STRUCT<c: STRING, d: ARRAY<INT>>>, l ARRAY<STRUCT<x: INT, y: STRING>>, "
            "m MAP<STRING, ARRAY<MAP<INT, DATE>>>",
            "INSERT INTO {t} VALUES (1, named_struct('a', 1, 'b', named_struct('c', 'x', 'd', array(1, NULL))), "
            "array(named_struct('x', 1, 'y', NULL), NULL), map('k', array(map(1, DATE'2024-01-01')), 'l', NULL)), "
            "(2, NULL, NULL, NULL), (3, named_struct('a', NULL, 'b', NULL), array(), map())",
        ),
    ),
    Made(
        "deletion_vectors",
        _table(
            _TWO,
            "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, string(id) FROM range(10)",
            "DELETE FROM {t} WHERE id % 2 = 0",
            **_VECTORS,
        ),
        read="deletion vectors",
        replace="deletion vectors",
    ),
    Made("deletion_vectors_unused", _table(_TWO, _ROWS, **_VECTORS)),
    Made(
        "deletion_vectors_purged",
        _table(
            _TWO,
            "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, string(id) FROM range(10)",
            "DELETE FROM {t} WHERE id % 2 = 0",
            "REORG TABLE {t} APPLY (PURGE)",
            **_VECTORS,
        ),
    ),
    Made(
        "deletion_vectors_of_whole_files",
        _table(
            _TWO,
            _ROWS,
            "INSERT INTO {t} VALUES (9, 'z')",
            "DELETE FROM {t} WHERE id = 9",
            **_VECTORS,
        ),
    ),
    Made(
        "column_mapping_name",
        _table(
            "id BIGINT, `a b` STRING, gone INT",
            "INSERT INTO {t} VALUES (1, 'x', 1)",
            "ALTER TABLE {t} RENAME COLUMN `a b` TO `c,d`",
            "ALTER TABLE {t} DROP COLUMN gone",
            "INSERT INTO {t} VALUES (2, 'y')",
            **{"columnMapping.mode": "name"},
        ),
        read="columnMapping",
        write="columnMapping",
    ),
    Made(
        "column_mapping_id",
        _table(_TWO, _ROWS, **{"columnMapping.mode": "id"}),
        read="columnMapping",
        write="columnMapping",
    ),
    Made(
        "column_mapping_upgraded",
        _table(
            _TWO,
            _ROWS,
            (
                "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
                "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
            ),
            "ALTER TABLE {t} RENAME COLUMN s TO r",
        ),
        read="columnMapping",
        write="columnMapping",
    ),
    Made(
        "generated_columns",
        _table(
            "id BIGINT, ts TIMESTAMP, d DATE GENERATED ALWAYS AS (CAST(ts AS DATE))",
            "INSERT INTO {t} (id, ts) VALUES (1, TIMESTAMP'2024-01-02 03:04:05Z'), (2, NULL)",
        ),
        write="generation expression",
    ),
    Made(
        "identity",
        _table(
            "id BIGINT, n BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 5 INCREMENT BY 3)",
            "INSERT INTO {t} (id) VALUES (1), (2)",
        ),
        write="identityColumns",
    ),
    Made(
        "check_constraint",
        _table(_TWO, _ROWS, "ALTER TABLE {t} ADD CONSTRAINT plus CHECK (id > 0)"),
        write="delta.constraints.plus",
    ),
    Made(
        "not_null",
        _table(
            "id BIGINT NOT NULL, s STRING NOT NULL, n STRUCT<a: INT NOT NULL>",
            "INSERT INTO {t} VALUES (1, 'a', named_struct('a', 1))",
        ),
    ),
    Made(
        "defaults",
        _table(
            "id BIGINT, s STRING DEFAULT 'none'",
            "INSERT INTO {t} (id) VALUES (1)",
            "INSERT INTO {t} VALUES (2, NULL)",
            **{"feature.allowColumnDefaults": "supported"},
        ),
        write="allowColumnDefaults",
    ),
    Made(
        "lengths",
        _table(
            "id BIGINT, c CHAR(5), v VARCHAR(5)",
            "INSERT INTO {t} VALUES (1, 'ab', 'ab'), (2, 'üüüüü', ''), (3, NULL, NULL)",
        ),
    ),
    Made(
        "lengths_inside",
        _table(
            "id BIGINT, a ARRAY<VARCHAR(3)>, n STRUCT<c: CHAR(3)>",
            "INSERT INTO {t} VALUES (1, array('abc'), named_struct('c', 'a'))",
        ),
        read="CHAR inside another type",
        write="CHAR inside another type",
    ),
    Made(
        "clustered", _table(_TWO, _ROWS, "OPTIMIZE {t}", more="CLUSTER BY (id)"), write="clustering"
    ),
    Made(
        "widened",
        _table(
            "id BIGINT, a TINYINT, b INT, f FLOAT, de DECIMAL(5,2), c INT, e SMALLINT, n STRUCT<x: INT>",
            "INSERT INTO {t} VALUES (1, 127, 2147483647, 1.1, 123.45, 16777217, 5, named_struct('x', 1))",
            "ALTER TABLE {t} ALTER COLUMN a TYPE INT",
            "ALTER TABLE {t} ALTER COLUMN b TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN de TYPE DECIMAL(10,4)",
            "ALTER TABLE {t} ALTER COLUMN c TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN e TYPE DECIMAL(12,2)",
            "ALTER TABLE {t} ALTER COLUMN n.x TYPE BIGINT",
            "INSERT INTO {t} VALUES (2, 100000, 5000000000, 1.1, 123456.7891, 0.5, 1.25, "
            "named_struct('x', 5000000000))",
            enableTypeWidening="true",
        ),
        write="typeWidening",
    ),
    Made(
        "widened_date",
        _table(
            "id BIGINT, d DATE",
            "INSERT INTO {t} VALUES (1, DATE'2024-01-02')",
            "ALTER TABLE {t} ALTER COLUMN d TYPE TIMESTAMP_NTZ",
            enableTypeWidening="true",
            **{"feature.timestampNtz": "supported"},
        ),
        read="was a date",
        write="was a date",
    ),
    Made(
        "widened_partition",
        _table(
            "id BIGINT, p INT",
            "INSERT INTO {t} VALUES (1, 5), (2, NULL)",
            "ALTER TABLE {t} ALTER COLUMN p TYPE BIGINT",
            "INSERT INTO {t} VALUES (3, 5000000000)",
            more="PARTITIONED BY (p)",
            enableTypeWidening="true",
        ),
        write="typeWidening",
    ),
    Made(
        "widened_partition_to_decimal",
        _table(
            "id BIGINT, p SMALLINT",
            "INSERT INTO {t} VALUES (1, 5), (2, NULL)",
            "ALTER TABLE {t} ALTER COLUMN p TYPE DECIMAL(12,2)",
            "INSERT INTO {t} VALUES (3, 5.25)",
            more="PARTITIONED BY (p)",
            enableTypeWidening="true",
        ),
        read=r"value '5', which deltalake does not read as decimal\(12,2\)",
        write=r"value '5', which deltalake does not read as decimal\(12,2\)",
    ),
    Made(
        "variant",
        _table("id BIGINT, v VARIANT", "INSERT INTO {t} SELECT 1, parse_json('{{\"a\": 1}}')"),
        read="variant",
        write="variant",
        query="SELECT id, to_json(v) v FROM {t}",
    ),
    Made(
        "row_tracking",
        _table(_TWO, _ROWS, "UPDATE {t} SET s = 'z' WHERE id = 1", enableRowTracking="true"),
        write="rowTracking",
    ),
    Made(
        "in_commit_timestamps",
        _table(_TWO, _ROWS, enableInCommitTimestamps="true"),
        write="inCommitTimestamp",
    ),
    Made(
        "v2_checkpoints",
        _table(
            _TWO,
            _ROWS,
            "INSERT INTO {t} VALUES (5, 'e')",
            "DELETE FROM {t} WHERE id = 5",
            "INSERT INTO {t} VALUES (6, 'f')",
            checkpointPolicy="v2",
            checkpointInterval="2",
        ),
    ),
    Made(
        "many_checkpoints",
        _table(
            _TWO,
            *(f"INSERT INTO {{t}} VALUES ({n}, 'x')" for n in range(7)),
            checkpointInterval="3",
            **{"checkpoint.writeStatsAsStruct": "true", "checkpoint.writeStatsAsJson": "false"},
        ),
    ),
    Made(
        "change_data_feed",
        _table(
            _TWO,
            _ROWS,
            "UPDATE {t} SET s = 'z' WHERE id = 1",
            "DELETE FROM {t} WHERE id = 2",
            enableChangeDataFeed="true",
        ),
        replace="enableChangeDataFeed",
    ),
    Made("append_only", _table(_TWO, _ROWS, appendOnly="true"), replace="appendOnly"),
    Made(
        "odd_partitions",
        _table(
            "id BIGINT, p STRING",
            "INSERT INTO {t} SELECT pos, col FROM (SELECT posexplode(array("
            + _ODD
            + ", '', NULL)))",
            more="PARTITIONED BY (p)",
        ),
    ),
    Made(
        "ascii_partitions",
        _table(
            "id BIGINT, p STRING, q INT",
            "INSERT INTO {t} VALUES (1, 'a', 1), (2, 'b c', NULL), (3, NULL, 3), (4, 'x', -4)",
            more="PARTITIONED BY (p, q)",
        ),
    ),
    Made(
        "typed_partitions",
        _table(
            "id BIGINT, bo BOOLEAN, da DATE, de DECIMAL(10,2), do DOUBLE, sm SMALLINT, nt TIMESTAMP_NTZ",
            (
                "INSERT INTO {t} VALUES (1, true, DATE'0001-01-01', 1.50, 0.1, 5, TIMESTAMP_NTZ'2024-01-01 "
                "00:00:00.5'), (2, false, DATE'9999-12-31', -3, -1e300, -5, TIMESTAMP_NTZ'1969-12-31 "
                "23:59:59'), (3, NULL, NULL, NULL, NULL, NULL, NULL)"
            ),
            more="PARTITIONED BY (bo, da, de, do, sm, nt)",
        ),
        write="",
    ),
    Made(
        "instants_as_partitions",
        (
            "SET TIME ZONE 'Europe/Berlin'",
            *_table(
                "id BIGINT, ts TIMESTAMP",
                (
                    "INSERT INTO {t} VALUES (1, TIMESTAMP'2024-07-01 00:00:00Z'), (2, TIMESTAMP'2024-12-31 "
                    "23:30:00.000001Z'), (3, NULL), (4, TIMESTAMP'2024-10-27 00:30:00Z'), (5, "
                    "TIMESTAMP'2024-10-27 01:30:00Z')"
                ),
                more="PARTITIONED BY (ts)",
            ),
            "SET TIME ZONE 'UTC'",
        ),
    ),
    Made(
        "binary_partitions",
        _table(
            "id BIGINT, p BINARY", "INSERT INTO {t} VALUES (1, X'61ff')", more="PARTITIONED BY (p)"
        ),
        read="binary",
        write="binary",
    ),
    Made(
        "odd_names",
        _table(
            "id BIGINT, `ü` STRING, `a-b` INT, `UPPER` INT, `日.本` STRING",
            "INSERT INTO {t} VALUES (1, 'x', 2, 3, 'z')",
        ),
    ),
    Made(
        "restored", _table(_TWO, _ROWS, "DELETE FROM {t}", "RESTORE TABLE {t} TO VERSION AS OF 1")
    ),
    Made(
        "vacuumed",
        _table(_TWO, _ROWS, "UPDATE {t} SET s = 'z' WHERE id = 1", "VACUUM {t} RETAIN 0 HOURS"),
    ),
    Made(
        "merged",
        _table(
            _TWO,
            _ROWS,
            (
                "MERGE INTO {t} USING (SELECT 1 id, 'n' s UNION ALL SELECT 9, 'm') n ON {t}.id = n.id WHEN "
                "MATCHED THEN UPDATE SET s = n.s WHEN NOT MATCHED THEN INSERT (id, s) VALUES (n.id, n.s) "
                "WHEN NOT MATCHED BY SOURCE AND {t}.id = 2 THEN DELETE"
            ),
            enableDeletionVectors="false",
        ),
    ),
    Made(
        "optimized",
        _table(
            _TWO,
            *(f"INSERT INTO {{t}} VALUES ({n}, 'x{n}')" for n in range(4)),
            "OPTIMIZE {t} ZORDER BY (id)",
        ),
    ),
    Made(
        "columns_added",
        _table(
            _TWO,
            _ROWS,
            "ALTER TABLE {t} ADD COLUMNS (f DOUBLE FIRST, n STRUCT<a: INT> AFTER id)",
            "INSERT INTO {t} VALUES (0.5, 7, named_struct('a', 1), 'q')",
            "ALTER TABLE {t} ADD COLUMNS (n.b STRING)",
            "ALTER TABLE {t} ALTER COLUMN s FIRST",
            "INSERT INTO {t} VALUES ('r', 1.5, 8, named_struct('a', 1, 'b', 'z'))",
        ),
    ),
    Made(
        "replaced_where",
        _table(_TWO, _ROWS, "INSERT INTO {t} REPLACE WHERE id > 2 VALUES (3, 'new')"),
    ),
    Made(
        "replaced",
        (
            *_table(_TWO, _ROWS),
            "CREATE OR REPLACE TABLE {t} USING delta LOCATION '{path}' AS SELECT 5L id, DATE'2024-01-01' d, 'x' p",
        ),
    ),
    Made(
        "converted",
        (
            (
                "CREATE TABLE {t}_p USING parquet PARTITIONED BY (p) LOCATION '{path}' AS SELECT id, "
                "string(id % 2) p FROM range(4)"
            ),
            "CONVERT TO DELTA parquet.`{path}` PARTITIONED BY (p STRING)",
            "CREATE TABLE {t} USING delta LOCATION '{path}'",
        ),
    ),
    Made(
        "cloned",
        (*_table(_TWO, _ROWS), "CREATE TABLE {t}_c SHALLOW CLONE {t} LOCATION '{path}_c'"),
        read="outside its directory",
        replace="outside its directory",
        query="SELECT * FROM {t}_c",
        suffix="_c",
    ),
    Made(
        "feature_dropped",
        _table(_TWO, _ROWS, "ALTER TABLE {t} DROP FEATURE deletionVectors", **_VECTORS),
        write="checkpointProtection",
    ),
    Made(
        "vacuum_check",
        _table(_TWO, _ROWS, **{"feature.vacuumProtocolCheck": "supported"}),
        write="vacuumProtocolCheck",
    ),
    Made("empty", _table(_TWO)),
    Made(
        "void",
        _table("id BIGINT, v VOID", "INSERT INTO {t} (id) VALUES (1)"),
    ),
    Made("no_statistics", _table(_TWO, _ROWS, dataSkippingNumIndexedCols="0")),
    Made(
        "random_prefixes",
        _table(
            "id BIGINT, p STRING",
            "INSERT INTO {t} VALUES (1, 'a'), (2, 'ü')",
            more="PARTITIONED BY (p)",
            randomizeFilePrefixes="true",
        ),
    ),
    Made(
        "commented",
        _table(
            "id BIGINT COMMENT 'the key', s STRING COMMENT 'ü'", _ROWS, more="COMMENT 'a table'"
        ),
    ),
)
