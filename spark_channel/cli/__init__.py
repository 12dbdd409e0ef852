"""The command line. `main` is what the `spark-channel` script runs."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command in `sys.argv`; an error of ours ends with its message and exit code 2 or 1."""
    from spark_channel.cli.app import app
    from spark_channel.errors import ChannelError, JobFileError, OptionError

    # Spark starts its Python workers with `python3` from PATH unless it is told otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    try:
        app()
    except (OptionError, JobFileError) as error:
        print(f"spark-channel: {error}", file=sys.stderr)  # noqa: T201 - the command line talks
        sys.exit(2)
    except ChannelError as error:
        print(f"spark-channel: {error}", file=sys.stderr)  # noqa: T201 - the command line talks
        sys.exit(1)
