"""Firebird 3, read and written by its own driver: a connector as a third party ships it."""

from spark_channel.connectors import Connector

__all__ = ["CONNECTOR"]

CONNECTOR = Connector(
    "firebird",
    "firebird_connector.reader:FirebirdReader",
    "spark_channel.connectors.sql:SqlWriter",
    database="firebird_connector.database:FirebirdDatabase",
    schemes=("firebird", "firebirdsql"),
    about="Firebird databases",
    port=3050,
    secrets=("url", "password"),
    feed=("cursorColumn",),
    maturity="stable",
    tested="Firebird 3.0",
    delivery={"job": "once", "task": "once"},
)
