"""Asks the driver's host for its service from a client that is elsewhere (Spark Connect).

Only planner workers run on the driver's host. A tiny data source brings what one of them found: its
`partitions` starts the service there, and its one row is the address, token included, which
travels to the client that asked as the result of the client's query.
"""

import json
from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_channel.errors import ServiceUnavailableError
from spark_channel.service import ServiceAddress, ensure_service
from spark_channel.spark.driver import command_of, service_settings

__all__ = ["ServiceDataSource", "ask_planner"]


class ServiceDataSource(DataSource):
    """One row: the address of the driver's service as JSON."""

    @classmethod
    def name(cls) -> str:
        return "spark_channel_service"

    def schema(self) -> str:
        return "address string"

    def reader(self, schema: StructType) -> "_ServiceReader":
        return _ServiceReader()


class _ServiceReader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        address = ensure_service(service_settings(command_of()))
        return [InputPartition(json.dumps(address.to_json()))]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        yield (partition.value,)


def ask_planner(spark: SparkSession) -> ServiceAddress:
    """The service on the host of `spark`'s driver.

    Raises:
        ServiceUnavailableError: what came back is not an address.
    """
    spark.dataSource.register(ServiceDataSource)
    row = spark.read.format(ServiceDataSource.name()).load().first()
    try:
        return ServiceAddress.from_json(json.loads(row.address)) if row else ServiceAddress.from_json(None)
    except ValueError as error:
        raise ServiceUnavailableError(f"the driver's host gave no address of its service: {error}") from None
