import hashlib
from typing import Any

import pyarrow as pa
import pytest

from spark_channel.errors import OptionError
from spark_channel.transform import Digest


@pytest.mark.parametrize("algorithm", ["md5", "sha1"])
@pytest.mark.parametrize("upper", [True, False])
def test_each_value_becomes_its_checksum_and_null_counts_as_empty(
    algorithm: Any, upper: bool
) -> None:
    values = ["xyzzzzz", None, "日本", "xyzzzzz", ""]
    outcome = Digest("value", algorithm, upper).apply(pa.record_batch({"value": values}))
    sums = [hashlib.new(algorithm, (value or "").encode()).hexdigest() for value in values]
    assert outcome.batch.column(0).to_pylist() == [text.upper() if upper else text for text in sums]
    assert not outcome.batch.schema.field(0).nullable


def test_the_documented_example() -> None:
    outcome = Digest(0, "md5", upper=True).apply(pa.record_batch({"value": ["xyzzzzz"]}))
    assert outcome.batch.column(0).to_pylist() == ["9CDFFC4FA4E45A99DB8BBCD762ACFFA2"]


def test_an_unknown_algorithm_is_refused() -> None:
    with pytest.raises(OptionError, match="'md5' or 'sha1'"):
        Digest(0, "crc32")  # type: ignore[arg-type] # wrong on purpose
