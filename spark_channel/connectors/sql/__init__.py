"""Databases: what they share (options, statements, JDBC's stride), and one package for each of them."""

from spark_channel.deferred import defer

# ADBC's dbapi imports it to know a dataset when it is given one, and with it comes pandas: 0.4 s of every process.
defer("pyarrow.dataset")
