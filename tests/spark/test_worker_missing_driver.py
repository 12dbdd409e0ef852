"""A JDBC driver that Spark does not have is one line that says what to do."""

import pytest

from spark_channel.errors import MissingPackageError
from spark_channel.spark.worker import own_error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "o52.load.\n: java.lang.ClassNotFoundException: oracle.jdbc.OracleDriver\n\tat java.net.URLClassLoader",
            r"Spark does not have the class oracle\.jdbc\.OracleDriver: give the driver's jar with --conf",
        ),
        (
            "o1.load.\n: java.sql.SQLException: No suitable driver\n\tat x",
            "does not have a JDBC driver for the url",
        ),
    ],
)
def test_a_missing_driver(text: str, message: str) -> None:
    with pytest.raises(MissingPackageError, match=message) as caught:
        raise own_error(RuntimeError(text)) or AssertionError(text)
    assert "\n" not in str(caught.value)


def test_another_missing_class_is_spark_s_own_error() -> None:
    assert own_error(RuntimeError("java.lang.ClassNotFoundException: com.example.Udf")) is None
