"""Integration with Spark. Without PySpark, importing from this package fails with an error that names the package."""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        "spark-channel found no PySpark in this Python. It does not install one by itself, "
        "because clusters, Databricks and Spark Connect clients have their own: "
        "install `spark-channel[spark]` for a local Spark, or `pyspark-client` for Spark Connect alone",
        name="pyspark",
    )
