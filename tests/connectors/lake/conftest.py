"""Spark with the lakes' own code, one for all tests."""

from collections.abc import Iterator

import pytest

from tests.servers.lake_spark import LakeSpark, lake_spark


@pytest.fixture(scope="session")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSpark]:
    with lake_spark(tmp_path_factory.mktemp("lakes")) as found:
        found.sql("CREATE NAMESPACE lake.shop")
        yield found
