"""Why a job failed, in one text."""

__all__ = ["reason_of"]


def reason_of(error: BaseException) -> str:
    """Why a job failed, for its summary."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) or type(error).__name__
