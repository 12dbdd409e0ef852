"""One connection to a MySQL or MariaDB server, through PyMySQL."""

import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from spark_channel.clock import SYSTEM_CLOCK, Clock
from spark_channel.connectors.base.contract import native_batch
from spark_channel.connectors.base.open_sessions import note_open
from spark_channel.connectors.base.overlap import FreeConnections
from spark_channel.connectors.base.server_url import is_of_this_machine
from spark_channel.connectors.base.session_pool import sessions
from spark_channel.connectors.mysql.options import ServerOptions, address_of
from spark_channel.connectors.mysql.session.variables import (
    ALL_ROWS,
    LEAST,
    MODE,
    SETTINGS,
    own_mode,
    session_variables,
    settings_to_change,
)
from spark_channel.connectors.sql.session import HIDDEN, BatchSize, BoundSession, session_script
from spark_channel.errors import ChannelError
from spark_channel.final_errors import final, of_input
from spark_channel.masking import without_frames
from spark_channel.retry import Retry

__all__ = [
    "LostConnectionError",
    "MysqlSession",
    "code_of",
    "is_away",
    "is_ended",
    "is_short",
    "quoted",
]


_T = TypeVar("_T")
_AWAY = frozenset(
    {1040, 1053, 1077, 1158, 1159, 1160, 1161, 1205, 1213, 1927, 2002, 2003, 2006, 2013, 2055, 4031}
)
"""Too many connections, shutting down, network, killed, lost; and lock waits and deadlocks, which pass."""
_NO_CONNECTION_LEFT = 1040
_PASSES = frozenset({1205, 1213})
_ENDED = frozenset({1317, 1969, 3024})
"""KILL QUERY, MariaDB's max_statement_time, MySQL's max_execution_time."""
_SHORT = frozenset({1021, 1037, 1041, 1317})
"""No disk, no memory; and KILL QUERY, after which the statement may succeed."""
_FULL = frozenset({1021, 1114})
_OF_INPUT = frozenset({1044, 1045, 1049, 1142, 1143, 1146, 1227, 1370, 1698})
"""A login, database, table or right that is not there."""
_BATCH_BYTES = 4 << 20
_LOST_CODE = 2013
_LOST_ADVICE = (
    "The connection ended while rows were read: "
    "a server also ends one that takes no rows for net_write_timeout, "
    "as in a pause of a table without a unique key. Read it with fewer rows in each split (more 'channels')"
)
_SLOW_SECONDS = 600
"""How long the server waits for a reader of one long statement that takes nothing, as in a pause."""
_QUOTE_NO_VALUE = (
    _AWAY
    | _ENDED
    | {
        1021,
        1044,
        1045,
        1046,
        1049,
        1052,
        1054,
        1064,
        1103,
        1114,
        1142,
        1143,
        1146,
        1153,
        1227,
        1305,
        1356,
        1370,
    }
)
"""Errors that name users, tables, columns and words of the statement, and never a value of a row."""
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""A server that vanished is noticed within a minute instead of hours, as by libpq."""
_NOT_MYSQL = (AssertionError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""What PyMySQL raises for bytes that it does not expect while it connects."""
_UNKNOWN_VARIABLE = 1193
_SERVER = ("server_uuid", "server_uid", "hostname", "port")
"""Variables that differ between servers: MySQL's, that of newer MariaDB, and those that both have."""
_COM_STMT_PREPARE, _COM_STMT_CLOSE = 0x16, 0x19
_INCOMPLETE = frozenset({1260, 1301, 1931})
"""Warnings: cut by GROUP_CONCAT, NULL instead of a value above max_allowed_packet
(findings/mariadb-repeat-becomes-null.sh), not all rows of a query.
"""
_QUOTED_NAME = re.compile("`[^`]*`")
_UNTRUSTED = "the server's certificate is not trusted; name the CA's file with 'sslrootcert', or see 'sslmode'. "
_HINTS = {
    1040: "all its connections are taken; lower 'maxConnections' or 'channels'. ",
    1044: "this user may not use the database: GRANT it a right there. ",
    1045: "the login was refused; see 'user' and 'password'. ",
    1049: "the database does not exist: see 'url'. ",
    1114: "the server's disk or table space is full; free space on it and run again. ",
    1021: "the server's disk is full; free space on it and run again. ",
    1142: "this user lacks a right: ",
    1153: "a row is longer than the server's max_allowed_packet; raise that setting. ",
    1317: "the statement was ended by KILL QUERY: run again. ",
    1927: "the connection was ended by KILL: run again. ",
    1969: "the server's setting max_statement_time, or option 'queryTimeout', ended the statement: raise it. ",
    3024: "the server's setting max_execution_time, or option 'queryTimeout', ended the statement: raise it. ",
    1205: "another session holds a lock for too long: end that, or run again later. ",
    2003: "no server answers there: see 'url', and whether the server runs. ",
}


class LostConnectionError(Exception):
    """The connection ended during a request, so its effect is unknown. `text` is for the user."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


_LOST = (LostConnectionError, ConnectionError, TimeoutError, ssl.SSLEOFError)
"""Errors of a connection that ended in the middle of a result."""


def is_away(error: BaseException) -> bool:
    """Whether `error`, of a session, is of a server that was lost or overloaded, or of a lock: it may pass."""
    cause = error.__cause__ or error.__context__ or error
    if isinstance(cause, _LOST) or _is_broken(cause):
        return True
    return _code(cause) in _AWAY and not _is_untrusted(cause)


def _is_broken(error: BaseException) -> bool:
    """Whether PyMySQL has closed the connection: it was lost before, or the server answered out of turn as it ended."""
    import pymysql

    kinds = (pymysql.err.InterfaceError, pymysql.err.InternalError)
    return isinstance(error, kinds) and not _code(error)


def is_ended(error: BaseException) -> bool:
    """Whether a time limit of the server, or an administrator, ended the statement, and not the session."""
    return _code(error.__cause__ or error.__context__ or error) in _ENDED


def is_short(error: BaseException) -> bool:
    """Whether the server lacks disk or memory, or a user ended the statement: it may succeed later.

    A time limit that ends a statement ends it again.
    """
    return code_of(error) in _SHORT


def code_of(error: BaseException) -> int:
    """The server's number for `error`, which a session raised; 0 = it has none."""
    return _code(error.__cause__) if error.__cause__ is not None else 0


def quoted(name: str) -> str:
    """A name in a statement, quoted."""
    return "`" + name.replace("`", "``") + "`"


class MysqlSession(BoundSession):
    """A connection in autocommit: transactions are begun and ended by statements. Used by one thread.

    `failure` is the class of what it raises for anything that the server refuses. The session's zone is the server's,
    unless `sessionTimeZone` or the user's statements set another. Its mode is strict whatever the server's is, or
    `sessionInitStatement` says, except with `sqlMode=session`. `SETTINGS` are set before these statements.

    While the server is away, connecting is tried again with growing pauses for `retryTimeout` seconds; not so when
    `patient` is false: a server that is not there when a job begins is a mistake in its url.
    """

    def __init__(
        self,
        options: ServerOptions,
        failure: type[ChannelError],
        *,
        clock: Clock = SYSTEM_CLOCK,
        local_infile: bool = False,
        patient: bool = True,
    ) -> None:
        self._failure = failure
        self._hides = bool(getattr(options, "hide_values", False))
        self._address = address_of(options)
        self.place = f"{self._address.host}:{self._address.port}"
        self._connection: Any = None
        self._options = options
        self._server: dict[str, str] = {}
        self._is_cut = False
        """Whether a signal ended the program while it waited for an answer, which the server may not have noticed."""
        import pymysql

        def is_of_the_moment(error: Exception) -> bool:
            if _code(error) == _NO_CONNECTION_LEFT:
                sessions.close_idle()
            if isinstance(error, pymysql.err.MySQLError):
                return _code(error) in _AWAY and not _is_untrusted(error)
            return isinstance(error, LostConnectionError | ChannelError) and is_away(error)

        seconds = options.retry_timeout if patient else 0.0
        try:
            Retry(seconds, what=f"reaching {self.place}", clock=clock).call(
                lambda: self._open(options, local_infile), is_of_the_moment
            )
        except LostConnectionError as error:
            raise failure(error.text) from without_frames(error)
        except pymysql.err.MySQLError as error:
            raise self.explain(without_frames(error)) from None

    def _open(self, options: ServerOptions, local_infile: bool) -> None:
        self._connection = self._connect(options, local_infile)
        with self.closed_on_failure():
            self._make_ready(options)

    def _make_ready(self, options: ServerOptions) -> None:
        self._set_all()
        if options.session_time_zone is not None:
            self.execute("SET SESSION time_zone = %s", [options.session_time_zone])
        keeps_mode = options.sql_mode == "session"
        if keeps_mode:
            self.execute("SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES')")
        if options.session_variables is not None:
            self.execute(f"SET SESSION {session_variables(options.session_variables)}")
        for statement in session_script(options, "mysql"):
            self.execute(statement)
        mode = own_mode() if keeps_mode else f"'{MODE}'"
        # What this connector's statements and values depend on comes last, whatever the user has set.
        self.execute(
            f"SET SESSION sql_mode = {mode}, character_set_client = utf8mb4, character_set_results = utf8mb4"
        )
        self.id = int(self._connection.thread_id())
        note_open(self)
        seconds = getattr(options, "query_timeout", 0)
        if seconds and self.is_mariadb:
            self.execute(f"SET SESSION max_statement_time = {seconds}")
        elif seconds:
            self.execute(f"SET SESSION max_execution_time = {seconds * 1000}")

    def _set_all(self) -> None:
        """Set what changes rows; what the user sets comes later, and holds."""
        try:
            self.execute(ALL_ROWS)
        except self._failure as error:
            if code_of(error) != _UNKNOWN_VARIABLE:
                raise
        variables = _by_name(self.rows(_show((*SETTINGS, *LEAST, *_SERVER))))
        self._server = _server_of(variables)
        if changes := settings_to_change(variables):
            self.execute(f"SET SESSION {changes}")

    def _connect(self, options: ServerOptions, local_infile: bool) -> Any:
        from spark_channel.connectors.mysql.session.guarded_connection import GuardedConnection

        try:
            connection = GuardedConnection(
                tls=_tls(options, self._failure),
                tls_required=_mode(options) != "prefer",
                server_public_key=_public_key(options, self._failure),
                takes_key=options.allow_public_key_retrieval,
                sends_plain=options.enable_cleartext_plugin,
                is_local=options.tls_mode is None and is_of_this_machine(self._address.host),
                host=self._address.host,
                port=self._address.port,
                user=options.user,
                # PyMySQL would encode a text as Latin-1; the server hashed it in UTF-8:
                # findings/pymysql-password-in-latin-1.sh
                password=b""
                if options.password is None
                else options.password.get_secret_value().encode(),
                database=self._address.database or None,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=int(max(1, options.connect_timeout)),
                local_infile=local_infile,
                read_timeout=options.socket_timeout,
                write_timeout=options.socket_timeout,
                program_name="spark-channel",
            )
            _keep_alive(connection)
            return connection
        except (OSError, ssl.SSLError) as error:
            raise self.explain(without_frames(error)) from None
        except RuntimeError as error:  # PyMySQL's word for a library that is not installed
            raise self._failure(f"{self.place}: {_missing_library(str(error))}") from None
        except _NOT_MYSQL as error:
            raise self._failure(
                f"{self.place}: the server does not speak MySQL's protocol, or asks for an authentication plugin that "
                f"spark-channel does not have ({type(error).__name__}: {options.hidden(error)}); "
                "check host and port of 'url', and the plugin of the user"
            ) from None

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in str(self._connection.get_server_info()).lower()

    @property
    def connection(self) -> Any:
        """PyMySQL's own, for what reads results as they come."""
        return self._connection

    def cancel(self) -> None:
        """See `CancelledAtEnd`. By another connection: the protocol has no request for it.

        A balancer, or a name of several addresses, may lead that one to another server, which has given the number to
        another session: it is ended only where the server is known to be the same.
        """
        connection = self._connection
        if not self._is_cut and (connection is None or not connection.open):
            return
        other = self._connect(self._options, local_infile=False)
        with closing(other), other.cursor() as cursor:
            cursor.execute(_show(_SERVER))
            server = _server_of(_by_name(cursor.fetchall()))
            if server and server == self._server:
                cursor.execute(f"KILL {self.id}")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception:  # PyMySQL raises if the connection is lost, which is the goal here
                connection._force_close()  # noqa: SLF001 - nothing else frees its socket

    def abandon(self) -> None:
        """End the connection at once, in the middle of a result: nothing is said to the server."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()  # noqa: SLF001 - `close` would read the rest of the result

    def rows(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small result; [] for a statement without one.

        Raises:
            ChannelError: the server refused it, or the connection ended before the answer came (see `lost`).
        """
        if parameters:  # the driver would take a `%` in a name for a mark
            sql = _QUOTED_NAME.sub(lambda name: name[0].replace("%", "%%"), sql)
        with self._cursor() as cursor:
            cursor.execute(sql, tuple(parameters) or None)
            return list(cursor.fetchall())

    def free_connections(self) -> FreeConnections | None:
        try:
            ((host, port, most, own_most, version),) = self.rows(
                "SELECT @@hostname, @@port, @@GLOBAL.max_connections, @@SESSION.max_user_connections, @@version"
            )
            ((_, used),) = self.rows("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
            counts = [int(most) - int(used)]
            if own_most:
                (user,) = self.rows("SELECT SUBSTRING_INDEX(USER(), '@', 1)")
                logins = [row for row in self.rows("SHOW PROCESSLIST") if row[1] == user[0]]
                counts.append(int(own_most) - len(logins))
        except ChannelError:  # a server of another program that speaks MySQL's protocol
            return None
        product = "MariaDB" if "MariaDB" in version else "MySQL"
        server = f"{product} {version.partition('-')[0]}"
        return FreeConnections(f"{host}:{port}", self.place, min(counts), server)

    def stream(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        """As fields of bytes. The server sends as fast as batches are taken: memory stays flat."""
        from spark_channel.connectors.mysql.session.protocol import field_batches

        for fields in self._results(field_batches, sql, size):
            names = [str(number) for number in range(len(fields))]
            yield pa.RecordBatch.from_arrays(fields, names)

    def lines(self, sql: str, size: BatchSize) -> Iterator[pa.RecordBatch]:
        """As `stream`, the rows as the lines that `RowSender` loads."""
        from spark_channel.connectors.mysql.session.protocol import line_batches

        for data, bounds in self._results(line_batches, sql, size):
            yield native_batch(data, bounds)

    def _results(
        self,
        batches: Callable[[Any, str, int, int], Iterator[_T]],
        sql: str,
        size: BatchSize,
    ) -> Iterator[_T]:
        import pymysql

        if self._connection is None:
            raise self._failure(f"{self.place}: the connection is closed")
        is_over = False
        try:
            yield from batches(self._connection, sql, size.rows, min(size.nbytes, _BATCH_BYTES))
            is_over = True
            if self._connection.warnings_left:
                self._check_whole()
        except (pymysql.err.MySQLError, OSError) as error:
            is_lost = _code(error) == _LOST_CODE or isinstance(error, ConnectionError)
            if is_lost and not _is_silence(error):
                raise self._failure(f"{self._text(error)}. {_LOST_ADVICE}") from error
            raise self.explain(error) from error
        finally:
            if not is_over:
                self.abandon()

    def _check_whole(self) -> None:
        """Check that the last result is whole: a server cuts rows and values with no more than a warning.

        Raises:
            ChannelError: it is not; with the server's text.
        """
        for _, code, text in self.rows("SHOW WARNINGS"):
            if int(code) in _INCOMPLETE:
                raise self._failure(
                    f"{self.place}: the server cut the result: {text} ({code}). "
                    "Rows or values are missing, so raise the server's limit, or change the query"
                )

    def wait_for_slow_reader(self) -> None:
        """The server's own choice is a minute, which a pause of one long statement may outlast
        (findings/mariadb-ends-slow-readers.sh).
        """
        # MySQL makes a DECIMAL of the variable and the number, which no whole-number variable takes.
        seconds = f"CAST(GREATEST(@@net_write_timeout, {_SLOW_SECONDS}) AS UNSIGNED)"
        self.execute(f"SET SESSION net_write_timeout = {seconds}")

    def affected(self, sql: str) -> tuple[int, int]:
        """Run a statement: (rows it affected, warnings it left)."""
        with self._cursor() as cursor:
            cursor.execute(sql)
            return int(cursor.rowcount), int(cursor.warning_count)

    def literal(self, value: object) -> str:
        """A value in a statement, as a literal."""
        with self._connection.cursor() as cursor:
            return str(cursor.mogrify("%s", (value,)))

    def fields(self, sql: str) -> list[Any]:
        """PyMySQL's descriptions of the columns of a result without rows."""
        with self._cursor() as cursor:
            cursor.execute(sql)
            return list(cursor._result.fields)  # noqa: SLF001 - flags and character sets are nowhere else

    def prepared_names(self, sql: str) -> list[str]:
        """The names of the columns that `sql` returns, which is not run."""
        from pymysql.protocol import FieldDescriptorPacket

        with self._cursor():
            # PyMySQL has no public way to send another command than a statement.
            send, read = self._connection._execute_command, self._connection._read_packet  # noqa: SLF001 - PyMySQL has no public way
            send(_COM_STMT_PREPARE, sql)
            head = read().get_all_data()
            columns, parameters = struct.unpack_from("<HH", head, 5)
            for _ in range(parameters + bool(parameters)):
                read()
            names = [str(read(FieldDescriptorPacket).name) for _ in range(columns)]
            if columns:
                read()
            send(_COM_STMT_CLOSE, head[1:5])  # which has no answer
            return names

    def named(self, sql: str) -> dict[str, Any]:
        """The first row of a result by the names of its columns; {} when there is none."""
        with self._cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
            if row is None:
                return {}
            return dict(zip((field[0] for field in cursor.description), row, strict=True))

    def warnings(self) -> list[tuple[str, int, str]]:
        """(level, code, text) of the last statement's first warnings."""
        return [
            (str(level), int(code), str(text))
            for level, code, text in self.rows("SHOW WARNINGS LIMIT 5")
        ]

    def may_send(
        self, name: str, data: Iterable[bytes | memoryview]
    ) -> AbstractContextManager[None]:
        """While this is open the server may ask for `data` as file `name` (LOAD DATA LOCAL); else for none."""
        return cast(AbstractContextManager[None], self._connection.may_send(name, data))

    def lost(self, text: str) -> Exception:
        """The error of a connection that ended before an answer came; `is_away` recognises it."""
        return self._failure(text)

    def explain(self, error: BaseException) -> ChannelError:
        code, explained = _code(error), self._failure(self._text(error))
        return final(of_input(explained, is_of_input=code in _OF_INPUT), is_final=code in _FULL)

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        import pymysql

        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except (KeyboardInterrupt, SystemExit):
            self._is_cut = True
            raise
        except pymysql.err.MySQLError as error:
            if _code(error) in _AWAY - _PASSES or _is_broken(error):
                raise self.lost(self._text(error)) from error
            raise self.explain(error) from error
        except OSError as error:
            raise self.lost(self._text(error)) from error
        except _NOT_MYSQL as error:
            if self._connection is not None and self._connection.open:
                raise
            text = f"{self.place}: the connection ended"
            raise self.lost(text) from LostConnectionError(str(error))

    def _text(self, error: BaseException) -> str:
        arguments = getattr(error, "args", ())
        code, text = _code(error), str(arguments[-1]) if arguments else str(error)
        if isinstance(error, OSError):
            code, text = 0, str(error)
        if _is_broken(error):
            text = "the connection ended"
        elif self._hides and code and code not in _QUOTE_NO_VALUE:
            text = HIDDEN
        hint = _UNTRUSTED if _is_untrusted(error) else _HINTS.get(code, "")
        if _is_silence(error):
            hint = "the server said nothing for 'socketTimeout'. "
        if not code:
            return f"{self.place}: {hint}{text}"
        says = "The server says: " if hint.endswith(". ") else "the server says: "
        is_client = 2000 <= code < 3000  # PyMySQL's own text, of a server that did not answer
        return f"{self.place}: {hint}{'' if is_client else says}{text} ({code})"


def _show(names: Iterable[str]) -> str:
    quoted_names = ", ".join(f"'{name}'" for name in names)
    return f"SHOW SESSION VARIABLES WHERE Variable_name IN ({quoted_names})"


def _by_name(variables: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in variables}


def _server_of(variables: dict[str, str]) -> dict[str, str]:
    """{} = the server does not say who it is."""
    server = {name: variables[name] for name in _SERVER if variables.get(name)}
    return server if server.keys() - {"port"} else {}


def _is_silence(error: BaseException) -> bool:
    """Whether `socketTimeout` is over; PyMySQL wraps it."""
    return isinstance(error, TimeoutError) or (
        _code(error) == _LOST_CODE and "timed out" in str(error)
    )


def _keep_alive(connection: Any) -> None:
    """PyMySQL switches keepalives on, and leaves their times to the system: two hours."""
    for name, seconds in _KEEPALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection._sock.setsockopt(socket.IPPROTO_TCP, option, seconds)  # noqa: SLF001 - no public way


def _is_untrusted(error: BaseException) -> bool:
    """The server is there, and not who it should be: waiting does not help."""
    return isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError)


def _code(error: BaseException) -> int:
    arguments = getattr(error, "args", ())
    return int(arguments[0]) if arguments and isinstance(arguments[0], int) else 0


def _mode(options: ServerOptions) -> str:
    return options.tls_mode or "prefer"


def _missing_library(library_error: str) -> str:
    if "pynacl" in library_error.lower():
        return f"the login (client_ed25519) needs a library ({library_error}): install `PyNaCl`"
    return (
        f"the login needs the library 'cryptography' ({library_error}), since the server has no TLS: install "
        "`PyMySQL[rsa]`, or switch TLS on in the server"
    )


def _public_key(options: ServerOptions, failure: type[ChannelError]) -> bytes | None:
    if options.server_rsa_public_key_file is None:
        return None
    try:
        return Path(options.server_rsa_public_key_file).read_bytes()
    except OSError as error:
        raise failure(
            f"the file of option 'serverRsaPublicKeyFile' cannot be read: {error}"
        ) from None


def _tls(options: ServerOptions, failure: type[ChannelError]) -> ssl.SSLContext | None:
    mode = _mode(options)
    if mode == "disable":
        return None
    try:
        unverified = mode in ("require", "prefer")
        if unverified and options.sslrootcert is None:
            # Nothing is verified: loading the system's certificates would take 20 ms of CPU for each connection.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        else:
            context = ssl.create_default_context(cafile=options.sslrootcert)
        context.check_hostname = mode == "verify-full"
        if unverified:
            context.verify_mode = ssl.CERT_NONE
        if options.sslcert is not None:
            context.load_cert_chain(options.sslcert, options.sslkey)
    except (OSError, ssl.SSLError) as error:
        raise failure(
            f"the files of sslrootcert, sslcert and sslkey cannot be used: {error}"
        ) from None
    return context
