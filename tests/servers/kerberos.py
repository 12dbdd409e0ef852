"""A Kerberos realm of the tests' own: MIT's KDC, of Debian, on a free port of 127.0.0.1."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.installed import EVERY, installed
from tests.servers.ports import free_port
from tests.servers.process import process_at_port

__all__ = ["REALM", "Kerberos", "start_kerberos"]

REALM = "TESTS"


@dataclass(frozen=True)
class Kerberos:
    """Files are in `folder`. `environment` is that of its programs and libraries; it has no ticket."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "krb5.conf"

    @property
    def keytab(self) -> Path:
        """The keys of all principals."""
        return self.folder / "keytab"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "KRB5_CONFIG": str(self.config),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5CCNAME": str(self.folder / "no-ticket"),
        }

    def add(self, principal: str) -> None:
        self.run("sbin/kadmin.local", "addprinc", "-randkey", principal)
        self.run("sbin/kadmin.local", "ktadd", "-k", str(self.keytab), principal)

    def ticket(self, user: str, *, life: str = "1h") -> Path:
        """A file for KRB5CCNAME: the ticket of a user that was added."""
        path = self.folder / f"ticket-{user}"
        self.run("bin/kinit", "-l", life, "-k", "-t", str(self.keytab), "-c", str(path), user)
        return path

    def run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [_root() / "usr" / program, *arguments],
            env={**os.environ, **self.environment, **_libraries()},
            check=True,
            capture_output=True,
        )


def _root() -> Path:
    return installed("kerberos", "krb5-kdc of Debian", by=EVERY)


def _libraries() -> dict[str, str]:
    (folder,) = {path.parent for path in (_root() / "usr/lib").rglob("libkdb5.so.*")}
    return {"LD_LIBRARY_PATH": str(folder)}


@contextmanager
def start_kerberos(folder: Path) -> Iterator[Kerberos]:
    """The realm `REALM`, without a principal; its files are put into `folder`."""
    realm, port = Kerberos(folder), free_port()
    (plugins,) = (_root() / "usr/lib").rglob("plugins/kdb")
    realm.config.write_text(
        f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\ndns_lookup_realm = false\n"
        "rdns = false\ndns_canonicalize_hostname = false\nudp_preference_limit = 1\n"
        f"[realms]\n{REALM} = {{\nkdc = 127.0.0.1:{port}\n}}\n"
        f"[dbmodules]\ndb_module_dir = {plugins}\n"
        f"{REALM} = {{\ndb_library = db2\ndatabase_name = {folder}/principal\n}}\n"
    )
    (folder / "kdc.conf").write_text(
        f"[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\n{REALM} = {{\nkey_stash_file = {folder}/stash\n}}\n"
    )
    realm.run("sbin/kdb5_util", "create", "-s", "-r", REALM, "-P", "master-of-tests")
    command = [str(_root() / "usr/sbin/krb5kdc"), "-n"]
    with process_at_port(command, port, {**realm.environment, **_libraries()}):
        yield realm
