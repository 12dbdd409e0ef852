"""DataX's job.json, read as the transfers that it asks for."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.datax.document import parse_parameters
    from spark_channel.datax.load import LoadedJob, load_job
else:
    __getattr__, __dir__ = lazy.exports(
        __name__, {"document": ["parse_parameters"], "load": ["LoadedJob", "load_job"]}
    )

__all__ = ["LoadedJob", "load_job", "parse_parameters"]
