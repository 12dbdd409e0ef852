"""What runs on Spark. Importing anything of it without PySpark says what to install."""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        "spark-channel found no PySpark in this Python. It does not install one by itself, "
        "because clusters, Databricks and Spark Connect clients have their own: "
        "install `spark-channel[spark]` for a local Spark, or `pyspark-client` for Spark Connect alone",
        name="pyspark",
    )
