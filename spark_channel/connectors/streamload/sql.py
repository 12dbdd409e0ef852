"""SQL over MySQL's protocol, which these databases speak on a second port."""

from collections.abc import Iterable
from math import ceil

from spark_channel.connectors.streamload.options import StreamLoadOptions, host_and_port
from spark_channel.errors import MissingPackageError, TargetError

__all__ = ["run"]


def run(options: StreamLoadOptions, statements: Iterable[str]) -> None:
    """
    Raises:
        TargetError: a statement failed; those before it have run.
    """
    try:
        import pymysql
    except ImportError:
        raise MissingPackageError(
            "option 'queryServer' needs pymysql: pip install 'spark-channel[mysql]', on the driver's host",
            name="pymysql",
        ) from None
    assert options.query_server is not None
    host, port = host_and_port(options.query_server, 9030)
    user, password = options.login
    place = f"{host}:{port}/{options.database}"
    try:
        connection = pymysql.connect(
            host=host, port=port, user=user, password=password, database=options.database, autocommit=True,
            connect_timeout=ceil(options.timeout), read_timeout=ceil(options.load_timeout),
            write_timeout=ceil(options.timeout),
        )  # fmt: skip
    except pymysql.MySQLError as error:
        raise TargetError(f"{place}: {error}; check 'queryServer', 'user' and 'password'") from error
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                except pymysql.MySQLError as error:
                    raise TargetError(f"{place}: {statement[:200]}: {error}") from error
    finally:
        connection.close()
