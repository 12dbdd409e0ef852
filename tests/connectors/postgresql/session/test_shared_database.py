import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

adbc_driver_manager = pytest.importorskip("adbc_driver_manager")
pytest.importorskip("adbc_driver_postgresql")

from spark_channel.connectors.postgresql.session.shared_database import SharedDatabase  # noqa: E402 - needs the driver


class _Driver:
    """Notices two calls at a time, which the driver cannot count."""

    def __init__(self) -> None:
        self.calls = 0
        self.overlaps = 0
        self._inside = threading.Lock()

    def call(self) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            return
        threading.Event().wait(0.001)  # lets another thread come
        self.calls += 1
        self._inside.release()

    def close(self) -> None: ...


class _Opened:
    def __init__(self, driver: _Driver) -> None:
        self._driver = driver
        driver.call()

    def set_autocommit(self, enabled: bool) -> None: ...

    def close(self) -> None:
        self._driver.call()


def test_connections_of_a_database_begin_and_end_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = _Driver()
    monkeypatch.setattr("adbc_driver_postgresql.connect", lambda url, types: driver)
    monkeypatch.setattr("adbc_driver_manager.AdbcConnection", _Opened)
    shared = SharedDatabase("postgresql://db")
    with ThreadPoolExecutor(8) as threads:
        for each in [
            threads.submit(lambda: shared.connect(autocommit=True).close()) for _ in range(40)
        ]:
            each.result()
    assert driver.overlaps == 0
    assert driver.calls == 80
