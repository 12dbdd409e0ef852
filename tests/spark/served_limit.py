"""`spark-channel limits serve`, as a process that a test may stop, kill and start again."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["ServedLimit"]


class ServedLimit:
    """Served from the start; `address` is what other hosts take, with the token in `token_file`."""

    def __init__(self, name: str, rate: int, token_file: Path | None = None) -> None:
        self.name, self.rate, self.token_file = name, rate, token_file
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "spark_channel.cli", "limits", "serve", self.name]
        command += ["--rows-per-second", str(self.rate)]
        if self.token_file is not None:
            command += ["--token-file", str(self.token_file)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        lines = [self.process.stdout.readline() for _ in range(1 if self.token_file is None else 2)]
        found = re.search(rf"\S+:\d+/{re.escape(self.name)}", "".join(lines))
        assert found, lines
        self.address = found.group()

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGCONT)
            os.kill(self.process.pid, number)
        self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
