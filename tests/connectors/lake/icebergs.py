"""Tables of Apache Iceberg as Spark makes them, one for each feature. `{t}` is the table's name."""

from functools import partial

from tests.connectors.lake import deltas

__all__ = ["ICEBERGS"]


def _table(columns: str, *sql: str, more: str = "", **properties: str) -> tuple[str, ...]:
    texts = ", ".join(
        f"'{name.replace('_', '-')}' = '{value}'" for name, value in properties.items()
    )
    settings = f"TBLPROPERTIES ({texts})" if texts else ""
    return (f"CREATE TABLE {{t}} ({columns}) USING iceberg {more} {settings}", *sql)


Made = partial(deltas.Made, system="iceberg")
_TWO = "id BIGINT, s STRING"
_ROWS = "INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, NULL), (4, 'ü')"
_TEN = "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, string(id) FROM range(10)"
_ON_READ = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
_ODD = "'a b', 'a/b', 'a=b', '100%', 'ü', '日本', 'x:y', '\"q\"', \"it's\", '#?&', '.', '__x', '%41', 'a+b', ''"
_TYPES = (
    "id BIGINT, bo BOOLEAN, i INT, f FLOAT, d DOUBLE, de DECIMAL(38,18), st STRING, bi BINARY, da DATE, ts TIMESTAMP, "
    "nt TIMESTAMP_NTZ, n STRUCT<a: INT, l: ARRAY<STRUCT<x: INT>>>, m MAP<STRING, ARRAY<INT>>"
)
_VALUES = (
    "INSERT INTO {t} VALUES (1, true, 2147483647, float('nan'), double('-Infinity'), "
    "12345678901234567890.123456789012345678, 'ü\\u0000x', X'00ff', DATE'9999-12-31', TIMESTAMP'9999-12-31 "
    "23:59:59.999999Z', TIMESTAMP_NTZ'0001-01-01 00:00:00', named_struct('a', 1, 'l', array(named_struct('x', 1), "
    "NULL)), map('k', array(1, NULL), 'l', NULL)), (2, false, -2147483648, float('-0.0'), double('1e-320'), "
    "-0.000000000000000001, '', X'', DATE'0001-01-01', TIMESTAMP'0001-01-01 00:00:00Z', NULL, NULL, map()), "
    "(3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, named_struct('a', NULL, 'l', array()), NULL)"
)

ICEBERGS = (
    *(
        Made(
            f"every_type_v{n}",
            _table(_TYPES, _VALUES, format_version=str(n)),
            write="" if n < 3 else "format version 3",
        )
        for n in (1, 2, 3)
    ),
    Made(
        "position_deletes",
        _table(_TWO, _TEN, "DELETE FROM {t} WHERE id % 2 = 0", format_version="2", **_ON_READ),
        read="delete files",
        replace="delete files",
    ),
    Made(
        "deletion_vectors",
        _table(_TWO, _TEN, "DELETE FROM {t} WHERE id % 2 = 0", format_version="3", **_ON_READ),
        read="delete",
        write="format version 3",
    ),
    Made(
        "deletes_rewritten",
        _table(
            _TWO,
            _TEN,
            "DELETE FROM {t} WHERE id % 2 = 0",
            "CALL lake.system.rewrite_data_files(table => '{t}', options => map('delete-file-threshold', '1'))",
            format_version="2",
            **_ON_READ,
        ),
    ),
    Made(
        "copied_on_write",
        _table(
            _TWO,
            _TEN,
            "DELETE FROM {t} WHERE id % 2 = 0",
            "UPDATE {t} SET s = 'z' WHERE id = 1",
            (
                "MERGE INTO {t} USING (SELECT 3L id, 'n' s UNION ALL SELECT 99L, 'm') n ON {t}.id = n.id "
                "WHEN MATCHED THEN UPDATE SET s = n.s WHEN NOT MATCHED THEN INSERT *"
            ),
            format_version="2",
        ),
    ),
    *(
        Made(
            f"by_{name}",
            _table(
                "id BIGINT, s STRING, ts TIMESTAMP, da DATE",
                (
                    "INSERT INTO {t} VALUES (1, 'abcdef', TIMESTAMP'2024-03-31 01:30:00Z', "
                    "DATE'2024-02-29'), (2, NULL, NULL, NULL), (-17, 'üüü', TIMESTAMP'1969-12-31 23:59:59Z', "
                    "DATE'1969-12-31')"
                ),
                more=f"PARTITIONED BY ({how})",
            ),
            write=word,
        )
        for name, how, word in (
            ("bucket", "bucket(4, id)", "bucket"),
            ("truncate", "truncate(2, s)", "truncate"),
            ("year", "year(ts)", "year"),
            ("month", "month(da)", "month"),
            ("day", "day(ts)", "day"),
            ("hour", "hour(ts)", "hour"),
        )
    ),
    Made(
        "identity_odd",
        _table(
            "id BIGINT, p STRING",
            "INSERT INTO {t} SELECT pos, col FROM (SELECT posexplode(array(" + _ODD + ", NULL)))",
            more="PARTITIONED BY (p)",
        ),
    ),
    Made(
        "identity_types",
        _table(
            "id BIGINT, bo BOOLEAN, da DATE, i INT",
            (
                "INSERT INTO {t} VALUES (1, true, DATE'0001-01-01', 5), (2, false, DATE'9999-12-31', -5), "
                "(3, NULL, NULL, NULL)"
            ),
            more="PARTITIONED BY (bo, da, i)",
        ),
    ),
    Made(
        "identity_more_types",
        _table(
            "id BIGINT, de DECIMAL(10,2), do DOUBLE, ts TIMESTAMP, nt TIMESTAMP_NTZ, bi BINARY",
            (
                "INSERT INTO {t} VALUES (1, 1.50, 0.1, TIMESTAMP'2024-01-01 00:00:00.5Z', "
                "TIMESTAMP_NTZ'1969-12-31 23:59:59', X'00ff'), (2, NULL, NULL, NULL, NULL, NULL)"
            ),
            more="PARTITIONED BY (de, do, ts, nt, bi)",
        ),
        write="partition",
    ),
    Made(
        "identity_inside",
        _table(
            "id BIGINT, n STRUCT<a: INT, b: STRING>",
            "INSERT INTO {t} VALUES (1, named_struct('a', 1, 'b', 'x')), (2, NULL)",
            more="PARTITIONED BY (n.a)",
        ),
        write="a field inside a column",
    ),
    Made(
        "spec_evolved",
        _table(
            _TWO,
            _ROWS,
            "ALTER TABLE {t} ADD PARTITION FIELD s",
            "INSERT INTO {t} VALUES (5, 'e')",
            "ALTER TABLE {t} DROP PARTITION FIELD s",
            "INSERT INTO {t} VALUES (6, 'f')",
            format_version="2",
        ),
    ),
    Made(
        "spec_evolved_to_bucket",
        _table(
            _TWO,
            _ROWS,
            "ALTER TABLE {t} REPLACE PARTITION FIELD s WITH bucket(2, id)",
            "INSERT INTO {t} VALUES (5, 'e')",
            format_version="2",
            more="PARTITIONED BY (s)",
        ),
        write="bucket",
    ),
    Made(
        "field_dropped_v1",
        _table(
            _TWO,
            _ROWS,
            "ALTER TABLE {t} DROP PARTITION FIELD s",
            "INSERT INTO {t} VALUES (5, 'e')",
            format_version="1",
            more="PARTITIONED BY (s)",
        ),
        write="",
    ),
    Made(
        "field_and_column_dropped_v1",
        _table(
            "id BIGINT, s STRING, r STRING",
            "INSERT INTO {t} VALUES (1, 'a', 'x'), (2, NULL, 'y')",
            "ALTER TABLE {t} DROP PARTITION FIELD r",
            "ALTER TABLE {t} DROP COLUMN r",
            "INSERT INTO {t} VALUES (5, 'e')",
            format_version="1",
            more="PARTITIONED BY (r)",
        ),
        write="whose column is gone",
    ),
    Made(
        "columns_changed",
        _table(
            "id INT, f FLOAT, de DECIMAL(5,2), gone STRING, s STRING, n STRUCT<a: INT, b: STRING>",
            "INSERT INTO {t} VALUES (1, 1.1, 123.45, 'x', 'a', named_struct('a', 1, 'b', 'c'))",
            "ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT",
            "ALTER TABLE {t} ALTER COLUMN f TYPE DOUBLE",
            "ALTER TABLE {t} ALTER COLUMN de TYPE DECIMAL(10,2)",
            "ALTER TABLE {t} DROP COLUMN gone",
            "ALTER TABLE {t} ADD COLUMN gone INT",
            "ALTER TABLE {t} RENAME COLUMN s TO r",
            "ALTER TABLE {t} ALTER COLUMN r FIRST",
            "ALTER TABLE {t} RENAME COLUMN n.a TO z",
            "ALTER TABLE {t} ADD COLUMN n.q INT AFTER z",
            "ALTER TABLE {t} DROP COLUMN n.b",
            "INSERT INTO {t} VALUES ('y', 5000000000, 1.1, 12345678.12, named_struct('z', 2, 'q', 3), 4)",
        ),
    ),
    Made(
        "names_swapped",
        _table(
            "id BIGINT, a STRING, b STRING",
            "INSERT INTO {t} VALUES (1, 'a', 'b')",
            "ALTER TABLE {t} RENAME COLUMN a TO c",
            "ALTER TABLE {t} RENAME COLUMN b TO a",
            "ALTER TABLE {t} RENAME COLUMN c TO b",
            "INSERT INTO {t} VALUES (2, 'b2', 'a2')",
        ),
    ),
    Made(
        "odd_names",
        _table(
            "id BIGINT, `a.b` STRING, `ü x` INT, `UPPER` INT",
            "INSERT INTO {t} VALUES (1, 'x', 2, 3)",
        ),
    ),
    Made(
        "defaults_v3",
        _table(
            _TWO,
            _ROWS,
            format_version="3",
        ),
        write="format version 3",
        default=7,
    ),
    Made(
        "variant",
        _table(
            "id BIGINT, v VARIANT",
            "INSERT INTO {t} SELECT 1, parse_json('{{\"a\": 1}}')",
            format_version="3",
        ),
        read="variant",
        write="variant",
        query="SELECT id, to_json(v) v FROM {t}",
    ),
    Made(
        "row_lineage",
        _table(_TWO, _ROWS, "UPDATE {t} SET s = 'z' WHERE id = 1", format_version="3"),
        write="format version 3",
    ),
    Made(
        "unknown_v3",
        _table("id BIGINT, v VOID", "INSERT INTO {t} (id) VALUES (1)", format_version="3"),
        write="format version 3",
    ),
    Made(
        "branches_and_tags",
        _table(
            _TWO,
            _ROWS,
            "ALTER TABLE {t} CREATE TAG first",
            "ALTER TABLE {t} CREATE BRANCH audit",
            "INSERT INTO {t}.branch_audit VALUES (9, 'audit')",
            "INSERT INTO {t} VALUES (5, 'e')",
        ),
    ),
    Made(
        "upgraded",
        _table(
            _TWO,
            _ROWS,
            "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '2')",
            "DELETE FROM {t} WHERE id = 1",
            format_version="1",
        ),
    ),
    *(
        Made(
            f"files_{form}",
            _table(_TWO, _ROWS, **{"write.format.default": form}),
            read=form.upper(),
            replace=form.upper(),
        )
        for form in ("orc", "avro")
    ),
    *(
        Made(
            f"codec_{codec}", _table(_TYPES, _VALUES, **{"write.parquet.compression-codec": codec})
        )
        for codec in ("zstd", "gzip", "uncompressed")
    ),
    Made(
        "sorted",
        _table(_TWO, "ALTER TABLE {t} WRITE ORDERED BY id DESC", _ROWS),
        write="sort order",
    ),
    Made(
        "distributed",
        _table(
            _TWO, "ALTER TABLE {t} WRITE DISTRIBUTED BY PARTITION", _ROWS, more="PARTITIONED BY (s)"
        ),
    ),
    Made(
        "renamed",
        _table(_TWO, _ROWS, "ALTER TABLE {t} RENAME TO shop.renamed_r"),
        query="SELECT * FROM {t}_r",
        suffix="_r",
    ),
    Made(
        "rewritten",
        _table(
            _TWO,
            *(f"INSERT INTO {{t}} VALUES ({n}, 'x')" for n in range(6)),
            "CALL lake.system.rewrite_data_files('{t}')",
            "CALL lake.system.rewrite_manifests('{t}')",
        ),
    ),
    Made(
        "expired",
        _table(
            _TWO,
            _ROWS,
            "INSERT OVERWRITE {t} VALUES (7, 'g')",
            (
                "CALL lake.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP '2100-01-01 "
                "00:00:00', retain_last => 1)"
            ),
        ),
    ),
    Made(
        "rolled_back",
        _table(
            _TWO,
            _ROWS,
            "INSERT INTO {t} VALUES (5, 'e')",
            "ALTER TABLE {t} CREATE TAG now",
            "CREATE OR REPLACE TABLE {t} USING iceberg AS SELECT * FROM {t} WHERE id < 3",
        ),
    ),
    Made(
        "required",
        _table(
            "id BIGINT NOT NULL, n STRUCT<a: INT NOT NULL>",
            "INSERT INTO {t} VALUES (1, named_struct('a', 1))",
        ),
    ),
    Made(
        "object_storage_paths",
        _table(_TWO, _ROWS, more="PARTITIONED BY (s)", **{"write.object-storage.enabled": "true"}),
    ),
    Made("no_metrics", _table(_TWO, _ROWS, **{"write.metadata.metrics.default": "none"})),
    Made("gzip_metadata", _table(_TWO, _ROWS, **{"write.metadata.compression-codec": "gzip"})),
    Made("empty", _table(_TWO)),
    Made("emptied", _table(_TWO, _ROWS, "DELETE FROM {t}")),
    Made(
        "identifier_fields",
        _table("id BIGINT NOT NULL, s STRING", "ALTER TABLE {t} SET IDENTIFIER FIELDS id", _ROWS),
    ),
    Made("statistics_files", _table(_TWO, _ROWS, "CALL lake.system.compute_table_stats('{t}')")),
    Made(
        "short_integers",
        _table(
            "id BIGINT, a TINYINT, b SMALLINT, c CHAR(5), v VARCHAR(5)",
            "INSERT INTO {t} VALUES (1, 1, 2, 'ab', 'ab')",
        ),
    ),
    Made(
        "replaced",
        _table(
            _TWO,
            _ROWS,
            "CREATE OR REPLACE TABLE {t} USING iceberg PARTITIONED BY (p) AS SELECT 5L id, 'x' p, DATE'2024-01-01' d",
        ),
    ),
)
