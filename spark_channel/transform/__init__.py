"""Transformers on Arrow batches, with pyarrow.compute: substr, pad, replace, digest, dropped rows, columns.

`transfer(..., transformers=[Substr("phone", 0, 3), DropRows("age", "<", "18"), lambda batch: ...])`

```python
import pyarrow as pa
from spark_channel.lazy import compute as pc
from spark_channel.transform import DropRows, Pad, Substr, prepare

def loud(batch):
    return batch.set_column(1, "name", pc.utf8_upper(batch["name"]))

rows = pa.record_batch({"id": [1, 2, 3], "name": ["ada", "b", "grace"]})
steps = prepare(
    [Pad("id", "l", 4, "0"), Substr("name", 1, 3), loud, DropRows("id", "=", "0002")], rows.schema
)
outcome = steps.run(rows)
assert outcome.batch.to_pylist() == [{"id": "0001", "name": "DA"}, {"id": "0003", "name": "RAC"}]
```
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.transform.convert import CsvTexts, JavaTexts, TimesAsText
    from spark_channel.transform.select import (
        DropRows,
        Output,
        RandomColumn,
        RefuseMalformed,
        Rename,
        Select,
    )
    from spark_channel.transform.text import Calculate, Digest, Pad, Replace, Substr
    from spark_channel.transform.time_patterns import strptime_pattern
    from spark_channel.transform.transformer import (
        Labelled,
        Pipeline,
        Refused,
        Transformer,
        TransformResult,
        prepare,
    )
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "convert": ["CsvTexts", "JavaTexts", "TimesAsText"],
            "select": ["DropRows", "Output", "RandomColumn", "RefuseMalformed", "Rename", "Select"],
            "text": ["Calculate", "Digest", "Pad", "Replace", "Substr"],
            "time_patterns": ["strptime_pattern"],
            "transformer": [
                "Labelled",
                "Pipeline",
                "Refused",
                "Transformer",
                "TransformResult",
                "prepare",
            ],
        },
    )

__all__ = [
    "Calculate",
    "CsvTexts",
    "Digest",
    "DropRows",
    "JavaTexts",
    "Labelled",
    "Output",
    "Pad",
    "Pipeline",
    "RandomColumn",
    "RefuseMalformed",
    "Refused",
    "Rename",
    "Replace",
    "Select",
    "Substr",
    "TimesAsText",
    "TransformResult",
    "Transformer",
    "prepare",
    "strptime_pattern",
]
