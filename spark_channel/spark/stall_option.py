"""`onStall` where Spark itself moves the rows."""

from spark_channel.errors import OptionError
from spark_channel.options import WriteOptions

__all__ = ["refuse_on_stall"]


def refuse_on_stall(options: WriteOptions) -> None:
    """Hold a write of a DataFrame not to be ended when it stalls.

    Raises:
        OptionError: `onStall=fail`: rows come from Spark, whose own wait for them no task can end.
    """
    if options.on_stall == "fail":
        raise OptionError(
            "option 'onStall' got 'fail', which is for transfer(): a write of a DataFrame may wait for Spark's own "
            "rows, which it cannot end. Omit it; with 'stallTimeout' the progress line names the task",
            option="onStall", got="fail", takes="report",
        )  # fmt: skip
