"""Consumer pools by name, for a whole process."""

import os
import threading

from spark_channel.carrier.pool import BulkConsumePool
from spark_channel.errors import FlowError

__all__ = ["ConsumerPools", "consumer_pools"]


class ConsumerPools:
    """Pools that parts of a program share by name. A forked child starts without any."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def create(self, name: str, threads: int = 1) -> BulkConsumePool:
        """The pool of that name, made if there is none yet.

        Raises:
            FlowError: it is there, with another number of threads.
        """
        with self._lock:
            pool = self._pools.get(name)
            if pool is None or pool.closed:
                pool = self._pools[name] = BulkConsumePool(threads, name=name)
            elif pool.threads != threads:
                raise FlowError(f"the pool {name!r} has {pool.threads} threads, not {threads}; see get()")
            return pool

    def get(self, name: str) -> BulkConsumePool:
        """The pool of that name.

        Raises:
            FlowError: there is none; the message names those that are.
        """
        with self._lock:
            pool = self._pools.get(name)
            if pool is None or pool.closed:
                known = ", ".join(sorted(name for name, pool in self._pools.items() if not pool.closed))
                raise FlowError(f"pool {name!r} does not exist; create it first. Pools: {known or 'none'}")
            return pool

    def close(self, name: str, timeout: float | None = None) -> bool:
        """Close the pool of that name and forget it; True when there is none. See `BulkConsumePool`."""
        with self._lock:
            pool = self._pools.pop(name, None)
        return pool is None or pool.close(timeout)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, BulkConsumePool] = {}


consumer_pools = ConsumerPools()
"""The pools of this process."""
