"""Many tables from one source to one target, as one YAML file describes them."""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.replication.config import Replication, json_schema, load_replication
    from spark_channel.replication.report import ReplicationReport, TableOutcome
    from spark_channel.replication.run import replicate_on
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "config": ["Replication", "json_schema", "load_replication"],
            "report": ["ReplicationReport", "TableOutcome"],
            "run": ["replicate_on"],
        },
    )

__all__ = [
    "Replication",
    "ReplicationReport",
    "TableOutcome",
    "json_schema",
    "load_replication",
    "replicate_on",
]
