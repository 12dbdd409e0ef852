"""Spends rows of a shared limit, and prints when: `python -m tests.behaviour.hosts.spender LIMIT TOKEN SECONDS`."""

import sys
import threading
import time

from spark_channel.progress import JobSpec
from spark_channel.service import ServiceClient, ServiceServer, find_shared_limit


def main() -> None:
    limit, token, seconds = sys.argv[1:]
    found = find_shared_limit(limit, token)
    changed = threading.Condition()

    def wake() -> None:
        with changed:
            changed.notify_all()

    with ServiceServer("127.0.0.1") as server:
        client = ServiceClient(server.address, "job", JobSpec("read"), shared_limit=found)
        limiter = client.limiter("task 0")
        assert limiter is not None
        end = time.monotonic() + float(seconds)
        while time.monotonic() < end:
            payment = limiter.pay(1, 0, wake)
            while (wait := payment.remaining()).seconds:
                with changed:
                    changed.wait(min(wait.seconds, 0.2))
            print(time.monotonic(), flush=True)
        client.close()


if __name__ == "__main__":
    main()
