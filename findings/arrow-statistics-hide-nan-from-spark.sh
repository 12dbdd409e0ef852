#!/usr/bin/env bash
# Guess: Spark finds the same rows in a Parquet file that pyarrow wrote as in one of its own, also with a filter.
# Happens: pyarrow's statistics leave NaN out. For Spark NaN is greater than every number, but it takes the statistics for
#   those of all rows, and passes over a row group with NaN: `d > 1` loses rows without a word.
# Version: pyarrow 26.0.1, PySpark 4.3.0
# Copes: spark_channel/connectors/files/formats/parquet.py
. "$(dirname "$0")/common.bash"
pip_install pyarrow==26.0.1 pyspark==4.3.0
observe python3 - 2>/dev/null <<'EOF'
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

pq.write_table(pa.table({"d": [0.5, float("nan")]}), "arrow.parquet")
statistics = pq.read_metadata("arrow.parquet").row_group(0).column(0).statistics
print("pyarrow:", statistics.min, statistics.max)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
spark.read.parquet("arrow.parquet").coalesce(1).write.parquet("spark.parquet")
for filters in ("true", "false"):
    spark.conf.set("spark.sql.parquet.filterPushdown", filters)
    for path in ("arrow.parquet", "spark.parquet"):
        print(f"pushdown {filters}, {path}:", spark.read.parquet(path).where("d > 1").count())
spark.stop()
EOF
expect <<'EOF'
pyarrow: 0.5 0.5
pushdown true, arrow.parquet: 0
pushdown true, spark.parquet: 1
pushdown false, arrow.parquet: 1
pushdown false, spark.parquet: 1
EOF
