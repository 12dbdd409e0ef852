"""Makes the table of servers in docs/hardening.md: `python -m tests.behaviour.attacks.table`.

What it says is tried by `test_logins.py`: `test_table.py` holds the two together.
"""

from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGE", "SERVERS", "page"]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "hardening.md"
_BEGIN, _END = "<!-- servers -->\n", "<!-- /servers -->\n"
_PLAIN = "the login, in plain text"


class Server(NamedTuple):
    """`names`: of connectors, as the registry has them, and of ways to reach files."""

    names: tuple[str, ...]
    title: str
    default: str
    proof: str
    before: str


SERVERS = (
    Server(
        ("postgresql",),
        "PostgreSQL",
        "`sslmode=prefer`: TLS where the server has it, not verified",
        "`sslrootcert`, or JDBC's `ssl=true` (`verify-full`); `sslmode=verify-ca` or `verify-full`",
        "what the server asks for: a proof (SCRAM), a hash (MD5), or with a warning the password; `require_auth` in "
        "the url narrows it",
    ),
    Server(
        ("adbc",),
        "ADBC",
        "the driver's; PostgreSQL's as above",
        "the driver's options; in a `uri` for PostgreSQL `sslrootcert` means `verify-full`, too",
        "the driver's",
    ),
    Server(
        ("mysql",),
        "MySQL, MariaDB",
        "`sslmode=prefer`: TLS where the server has it, not verified",
        "`sslrootcert`, or `verifyServerCertificate=true` in the url (`verify-full`); `sslmode=verify-ca` or "
        "`verify-full`",
        "a scramble of the password; the password only with `enableCleartextPlugin`, for a first "
        "login to a server of this machine without `sslmode`, or for a key of "
        "`serverRsaPublicKeyFile` or `allowPublicKeyRetrieval`",
    ),
    Server(
        ("clickhouse",),
        "ClickHouse",
        "no TLS",
        "`?ssl=true`, `?secure=true`, `?protocol=https` or `https://`: always verified",
        f"without TLS {_PLAIN}",
    ),
    Server(
        ("elasticsearch", "http", "streamload"),
        "Elasticsearch, web services, Stream Load",
        "as the url says",
        "`https://`: always verified",
        f"with `http://` {_PLAIN}",
    ),
    Server(
        ("redis",),
        "Redis",
        "as the url says",
        "`rediss://`: always verified",
        f"with `redis://` {_PLAIN}",
    ),
    Server(
        ("kafka",),
        "Kafka",
        "TLS with a `user`, `sslrootcert` or `sslcert`",
        "the system's CAs or `sslrootcert`, and the host's name",
        f"with `SASL_PLAINTEXT` {_PLAIN}, or by SCRAM a proof",
    ),
    Server(
        ("mongodb",),
        "MongoDB",
        "as the url says; `mongodb+srv://` has TLS",
        "`tls=true` or `tlsCAFile`: verified, but for `tlsInsecure` and its kin",
        "without TLS a proof (SCRAM)",
    ),
    Server(
        ("ftps",),
        "FTPS",
        "verified",
        "the system's CAs or `sslrootcert`; none with `sslmode=require`",
        f"nothing; `ftp://` sends {_PLAIN}",
    ),
    Server(
        ("sftp",),
        "SFTP",
        "verified",
        "the host's key: `known_hosts`, where `@revoked` holds, or `host_key`",
        "nothing; with `host_key=any` the login",
    ),
    Server(
        ("iceberg", "delta", "files"),
        "object stores, Iceberg's catalogs",
        "`https`",
        "the system's CAs",
        "with `scheme=http` in the uri (a warning names the host), or an `http://` catalog: signatures, or the token "
        "in plain text",
    ),
)


def page() -> tuple[str, str]:
    """The page as it is, and as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(_BEGIN, 1)
    rows = [f"| {each.title} | {each.default} | {each.proof} | {each.before} |" for each in SERVERS]
    table = [
        "| server | default | what proves it | sent before it is proven |",
        "|---|---|---|---|",
        *rows,
        "",
    ]
    return text, head + _BEGIN + "\n".join(table) + _END + rest.split(_END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(page()[1], encoding="utf-8")
