"""Where a job keeps its rows until they are published: see `staging_files`, which other database files share."""

from spark_channel.connectors.sql.staging_files import ORPHAN_SECONDS, Staging, clear_orphans, target_errors

__all__ = ["ORPHAN_SECONDS", "Staging", "clear_orphans", "target_errors"]
