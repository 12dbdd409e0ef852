"""What a job file asks for, apart from the reader of job files, so that a copy of one table need not import that."""

from dataclasses import dataclass

from spark_channel.planning import TransferSpec

__all__ = ["LoadedJob"]


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """What a job file asks for: one transfer for each content that runs, and what the user should know."""

    specs: tuple[TransferSpec, ...]
    warnings: tuple[str, ...] = ()
    name: str = "job"

    @property
    def spec(self) -> TransferSpec:
        """The first transfer, which is the only one unless all contents were asked for."""
        return self.specs[0]
