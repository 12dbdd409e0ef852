"""Servers of files as Debian has them, on a free port of 127.0.0.1: OpenSSH, vsftpd, ProFTPD and pure-ftpd.

Each runs in a mount namespace where /etc/passwd and what belongs to it are files of the tests, so it needs root, and
nothing of the system changes. A process namespace ends a server with the children that it left.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers.certificate import create_certificate
from tests.servers.installed import installed, not_installed
from tests.servers.ports import free_port
from tests.servers.process import process_at_port

__all__ = ["KINDS", "PASSWORD", "USER", "FileServer", "file_server"]

USER, PASSWORD = "ann", "s3cret"
_UID = 2001
KINDS = ("vsftpd", "proftpd", "proftpd-sftp", "pure-ftpd", "sshd")
_PAM = "auth required pam_unix.so\naccount required pam_permit.so\nsession required pam_permit.so\n"

_VSFTPD = """listen=YES
listen_address=127.0.0.1
listen_port={port}
background=NO
anonymous_enable=NO
local_enable=YES
write_enable=YES
check_shell=NO
secure_chroot_dir=/run/vsftpd/empty
pam_service_name=vsftpd
seccomp_sandbox=NO
"""
_VSFTPD_TLS = """ssl_enable=YES
rsa_cert_file={etc}/ca.pem
rsa_private_key_file={etc}/key.pem
"""
_PROFTPD = """ModulePath {root}/usr/lib/proftpd
ServerType standalone
DefaultServer on
UseIPv6 off
SocketBindTight on
DefaultAddress 127.0.0.1
Port {port}
User nobody
Group nogroup
AllowOverwrite on
RequireValidShell off
AuthOrder mod_auth_unix.c
SystemLog {etc}/log
TransferLog none
WtmpLog off
PidFile {etc}/pid
ScoreboardFile {etc}/scoreboard
DelayTable {etc}/delay
"""
_PROFTPD_TLS = """LoadModule mod_tls.c
TLSEngine on
TLSRequired off
TLSRSACertificateFile {etc}/ca.pem
TLSRSACertificateKeyFile {etc}/key.pem
"""
_PROFTPD_SFTP = """LoadModule mod_sftp.c
SFTPEngine on
SFTPHostKey {etc}/host
SFTPAuthMethods password
"""
_SSHD = """ListenAddress 127.0.0.1:{port}
HostKey {etc}/host
StrictModes no
UsePAM yes
PidFile none
Subsystem sftp internal-sftp
"""


@dataclass(frozen=True)
class FileServer:
    """`home` is the user's folder, by the path that the server shows; `certificate` is what FTPS is verified by."""

    kind: str
    port: int
    home: Path
    certificate: Path
    host_key: str

    def give(self, path: Path) -> None:
        """Let the user of the server own what a test has made."""
        for each in (path, *path.rglob("*")):
            os.chown(each, _UID, _UID, follow_symlinks=False)


@contextmanager
def file_server(kind: str, *settings: str, tls: bool = False) -> Iterator[FileServer]:
    """`tls` is vsftpd's own; ProFTPD and pure-ftpd speak FTP and FTPS at one port, and SFTP is a kind of ProFTPD.
    `settings` are lines of its configuration, or arguments of pure-ftpd."""
    root = installed("file-servers", "vsftpd, proftpd-core, pure-ftpd and openssh-server of Debian")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        not_installed("unshare, by which root gives servers of files users of their own,")
    top = Path(tempfile.mkdtemp(prefix="files-"))
    top.chmod(0o755)
    etc, home, port = top / "etc", top / "home", free_port()
    try:
        (etc / "pam.d").mkdir(parents=True)
        home.mkdir()
        os.chown(home, _UID, _UID)
        create_certificate(etc)
        (etc / "server.pem").chmod(0o600)
        command = _command(kind, root, etc, port, settings, tls=tls)
        _users(etc, home)
        binds = [
            f"mount --bind {etc / name} /etc/{name}"
            for name in ("passwd", "group", "shadow", "pam.d")
        ]
        folders = "mkdir -p /run/sshd /run/vsftpd/empty /run/proftpd && chmod 755 /run/sshd"
        libraries = ":".join(str(each) for each in root.glob("**/lib/*-linux-gnu"))
        # The shell stays the first process: vsftpd ends when it finds a child that it has not started.
        script = " && ".join(
            [
                *binds,
                "mount -t tmpfs none /run",
                folders,
                f"env LD_LIBRARY_PATH={libraries} {command}; true",
            ]
        )
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with process_at_port([*namespaces, "sh", "-c", script], port):
            key = _fingerprint(etc) if (etc / "host").exists() else ""
            yield FileServer(kind, port, home, etc / "ca.pem", key)
    finally:
        shutil.rmtree(top, ignore_errors=True)


def _users(etc: Path, home: Path) -> None:
    secret = _output("openssl", "passwd", "-6", PASSWORD)
    lines = {
        "passwd": f"{USER}:x:{_UID}:{_UID}::{home}:/bin/sh\n"
        f"sshd:x:2002:65534::/run/sshd:/usr/sbin/nologin\nftp:x:2003:65534::{home}:/usr/sbin/nologin\n",
        "group": f"{USER}:x:{_UID}:\n",
        "shadow": f"{USER}:{secret}:19000:0:99999:7:::\n",
    }
    for name, text in lines.items():
        (etc / name).write_text(Path("/etc", name).read_text() + text)
    for name in ("vsftpd", "sshd", "proftpd", "pure-ftpd"):
        (etc / "pam.d" / name).write_text(_PAM)


def _command(
    kind: str, root: Path, etc: Path, port: int, settings: tuple[str, ...], *, tls: bool
) -> str:
    text = {
        "vsftpd": _VSFTPD + (_VSFTPD_TLS if tls else ""),
        "proftpd": _PROFTPD + _PROFTPD_TLS,
        "proftpd-sftp": _PROFTPD + _PROFTPD_SFTP,
        "sshd": _SSHD,
        "pure-ftpd": "",
    }[kind].format(root=root, etc=etc, port=port)
    configuration = etc / "configuration"
    configuration.write_text(text + "".join(f"{line}\n" for line in settings))
    if kind in ("sshd", "proftpd-sftp"):  # mod_sftp 1.1 takes RSA keys, in their older form
        form = ("-t", "ed25519") if kind == "sshd" else ("-t", "rsa", "-m", "PEM")
        _output("ssh-keygen", "-q", *form, "-N", "", "-f", str(etc / "host"))
    arguments = {
        "vsftpd": str(configuration),
        "proftpd": f"-n -c {configuration}",
        "sshd": f"-D -e -f {configuration}",
        "pure-ftpd": f"-S 127.0.0.1,{port} -E -l pam -u 1000 -Y 1 -2 {etc / 'server.pem'} {' '.join(settings)}",
    }
    program = kind.removesuffix("-sftp")
    return f"{root}/usr/sbin/{program} {arguments[program]}"


def _fingerprint(etc: Path) -> str:
    """As OpenSSH prints it: `256 SHA256:... comment (ED25519)`."""
    return _output("ssh-keygen", "-l", "-f", str(etc / "host.pub")).split()[1]


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
