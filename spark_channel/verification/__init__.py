"""Proof that two tables hold the same rows, and repair of those that do not."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_channel.errors import MissingPackageError, UnsupportedError
from spark_channel.requirements import check_versions

if TYPE_CHECKING:
    from spark_channel.planning import TransferSpec
    from spark_channel.transfers.task import Engine
    from spark_channel.verification.report import RepairSettings, VerifyReport, VerifySettings

__all__ = ["verify_with"]


def verify_with(
    engine: "Engine",
    spec: "TransferSpec",
    overrides: Mapping[str, Any],
    settings: "VerifySettings",
    repairs: "RepairSettings | None" = None,
) -> "VerifyReport":
    """Verify that the ends of `spec` hold the same rows, and repair the target; `overrides`: options of the job.

    Raises:
        ChannelError: as `spark_channel.verify`.
    """
    try:
        import numpy  # noqa: F401 - whether it is there
    except ImportError as error:
        raise MissingPackageError(
            "verify needs numpy: pip install 'spark-channel[verify]'", name="numpy"
        ) from error
    check_versions("verify")
    from spark_channel.transfers.options import job_options
    from spark_channel.verification.repair import refuse_impossible, repair
    from spark_channel.verification.run import Verification

    if spec.targets:
        raise UnsupportedError(
            "the job has several targets: verify each by its own, with two urls or two places"
        )
    verification = Verification(engine, job_options(spec, overrides), settings)
    if repairs is None:
        return verification.run()
    refuse_impossible(verification, delete=repairs.delete)
    return verification.run(partial(repair, verification, repairs))
