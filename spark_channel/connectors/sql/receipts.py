"""The driver's checks of a job's receipts."""

from collections import Counter
from collections.abc import Sequence

from spark_channel.connectors.contracts import Receipt
from spark_channel.errors import CommitError

__all__ = ["refuse_two_receipts"]


def refuse_two_receipts(receipts: Sequence[Receipt]) -> None:
    """Hold each task to have one receipt.

    Raises:
        CommitError: one has two, so that nothing says which rows are meant.
    """
    counts = Counter(receipt.task for receipt in receipts)
    twice = [task for task, count in counts.items() if count > 1]
    if twice:
        raise CommitError(f"two receipts of task {min(twice)}: nothing was published")
