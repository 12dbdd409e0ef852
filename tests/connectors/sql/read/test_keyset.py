"""Which connection the reads of a thread get."""

from typing import Any, cast

import pytest

from spark_channel.connectors.sql.read.short_statements import SessionHolder
from spark_channel.errors import SourceError


class Session:
    """One whose server can go away."""

    def __init__(self) -> None:
        self.is_open, self.is_gone = True, False

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def ping(self) -> None:
        if self.is_gone or not self.is_open:
            raise SourceError("the server closed the connection")

    def close(self) -> None:
        self.is_open = False


class Server:
    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.line = SessionHolder(cast(Any, self._connect))

    def _connect(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    def read(self) -> Any:
        with self.line.answering() as session:
            return session


@pytest.fixture
def server() -> Server:
    return Server()


def test_one_read_after_another_has_the_same_which_the_end_closes(server: Server) -> None:
    with server.line:
        assert server.read() is server.read()
        assert [each.is_open for each in server.sessions] == [True]
    assert [each.is_open for each in server.sessions] == [False]


def test_one_whose_server_is_gone_is_replaced(server: Server) -> None:
    with server.line:
        server.read().is_gone = True
        assert server.read() is server.sessions[1]
    assert [each.is_open for each in server.sessions] == [False, False]


def test_one_that_a_read_closed_or_failed_with_is_not_used_again(server: Server) -> None:
    with server.line:
        with server.line.answering() as left_early:
            left_early.close()
        with pytest.raises(SourceError, match="a row"), server.line.answering():
            raise SourceError("a row does not fit")
        server.read()
        assert [each.is_open for each in server.sessions] == [False, False, True]
    assert [each.is_open for each in server.sessions] == [False] * 3


def test_nothing_is_opened_for_nothing(server: Server) -> None:
    with server.line:
        pass
    assert server.sessions == []
