"""Transformers on Arrow batches, with pyarrow.compute: substr, pad, replace, digest, dropped rows, columns.

`transfer(..., transformers=[Substr("phone", 0, 3), DropRows("age", "<", "18"), lambda batch: ...])`
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.transform.calculate import Calculate
    from spark_channel.transform.columns import Output, Rename, Select
    from spark_channel.transform.contract import Outcome, Refused, Transformer
    from spark_channel.transform.digest import Digest
    from spark_channel.transform.java_texts import CsvTexts, JavaTexts
    from spark_channel.transform.made_up import RandomValues
    from spark_channel.transform.malformed import RefuseMalformed
    from spark_channel.transform.patterns import strptime_pattern
    from spark_channel.transform.pipeline import Apply, Labelled, Pipeline, as_transformers, prepare
    from spark_channel.transform.rows import DropRows
    from spark_channel.transform.text import Pad, Replace, Substr
    from spark_channel.transform.times import TimesAsText
else:
    __getattr__, __dir__ = lazy.exports(__name__)

__all__ = [
    "Apply",
    "Calculate",
    "CsvTexts",
    "Digest",
    "DropRows",
    "JavaTexts",
    "Labelled",
    "Outcome",
    "Output",
    "Pad",
    "Pipeline",
    "RandomValues",
    "RefuseMalformed",
    "Refused",
    "Rename",
    "Replace",
    "Select",
    "Substr",
    "TimesAsText",
    "Transformer",
    "as_transformers",
    "prepare",
    "strptime_pattern",
]
