"""Where files are: paths and uris become a `pyarrow.fs` filesystem and a path in it.

Local paths are plain, absolute or relative to the driver, or `file:` uris (percent-encoded, as
`pathlib.Path.as_uri` writes them). Others are what `pyarrow.fs` takes: s3:// (s3a, s3n), gs://, abfs://; hdfs://; and
servers of files: sftp://, ftp://, ftps://. Their paths are taken byte for byte: see `uris`.
"""

import os
import posixpath
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from spark_channel.connectors import hdfs
from spark_channel.connectors.base.server_url import is_of_this_machine
from spark_channel.connectors.files.credentials import StorageCredentials
from spark_channel.connectors.files.uris import BUCKETS, MARK, Uri, check_text
from spark_channel.connectors.remote import filesystem
from spark_channel.connectors.remote.client import Address, is_remote
from spark_channel.errors import OptionError
from spark_channel.masking import hide_in_error, is_secret_name, mask_url, secrets_in
from spark_channel.plain_text import log_of
from spark_channel.working_directory import path_of_uri

__all__ = [
    "LOG",
    "PREFIXES",
    "Location",
    "azure_account",
    "azure_key",
    "find_replaced",
    "is_hidden",
    "is_internal",
    "locate",
    "open_planned",
    "read_file",
    "renames_in",
    "reopen",
    "replaced_path",
]


_log = log_of(__name__)

LOG = "_spark_channel"
PREFIXES = "prefixes"
"""The folder in it of the logs of prefixes."""
"""The folder in a target that holds the log and staging. Spark's readers skip names that begin with `_`."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_READS = 10


@dataclass(frozen=True)
class Location:
    """A path in a filesystem. `root` makes the filesystem again in another process: '' = local disk.

    `login`: credentials that an option gave; None = those of the environment.
    """

    fs: pafs.FileSystem
    path: str
    root: str
    login: StorageCredentials | None = None

    @property
    def local(self) -> bool:
        return self.root == ""

    @property
    def renames(self) -> bool:
        """Whether files are renamed in one step, as on a disk: what is replaced moves out of sight."""
        return renames_in(self.root)

    def info(self, path: str) -> pafs.FileInfo:
        """What is at `path` in this filesystem."""
        info: pafs.FileInfo = self.fs.get_file_info(path)
        if info.type == pafs.FileType.NotFound and self.root.startswith("abfs"):
            # pyarrow asks Azure for the first name that begins with `x`, and that may be `x-2/`, which hides `x/`.
            inside = self.fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
            return pafs.FileInfo(path, pafs.FileType.Directory) if inside else info
        return info

    def has_objects_below(self, path: str) -> bool:
        """Whether names begin with `path/`: in an object store, beside an object `path`, too."""
        if self.root.partition(":")[0] not in BUCKETS:
            return False
        return bool(self.fs.get_file_info(pafs.FileSelector(path, allow_not_found=True)))

    def show(self, path: str | None = None) -> str:
        """`path` (default: this one) for a message, with the scheme of its filesystem."""
        path = self.path if path is None else path
        return path if self.local else mask_url(f"{self.root.split('://', 1)[0]}://{path}")


def renames_in(root: str) -> bool:
    """Whether files are renamed in one step in the filesystem of `root`."""
    return root == "" or hdfs.is_hdfs(root)


def is_internal(name: str) -> bool:
    """Hidden names that hold no rows, or no whole ones: logs, staging, files that are being copied, checksums."""
    return (
        name in ("_spark_channel", "_SUCCESS", "_temporary", "_spark_metadata", "_delta_log")
        or name.startswith((".spark-channel", ".hive-staging"))
        or name.endswith(("._COPYING_", "_$folder$"))
        or (name.startswith(".") and name.endswith(".crc"))
    )


def is_hidden(name: str) -> bool:
    """Names that Spark does not read: `_x`, `.x` and files being copied; but `_x=1` is a partition.

    And `x_$folder$`, which stands for an empty folder where Hadoop or EMR wrote into an object store.
    """
    return (
        name.startswith(".")
        or (name.startswith("_") and "=" not in name)
        or name.endswith(("._COPYING_", "_$folder$"))
    )


def locate(path: str, option: str = "path", login: StorageCredentials | None = None) -> Location:
    """The filesystem and path that `path` names. Opens no connection.

    Raises:
        OptionError: empty, an unknown scheme, a password inside, or a uri that its filesystem refuses.
    """
    if not path.strip():
        raise OptionError(
            f"option {option!r} is empty; it takes a path or a uri", option=option, got=path
        )
    if "\0" in path:
        raise OptionError(f"option {option!r} holds a zero byte", option=option)
    check_text(path, option)
    if not _SCHEME.match(path):
        return Location(_local(), str(Path(path).absolute()), "")
    scheme, path_part = path.split(":", 1)
    if scheme.lower() == "file":
        try:
            return Location(_local(), str(Path(path_of_uri(path_part)).absolute()), "")
        except ValueError as error:
            raise OptionError(f"option {option!r}: it takes {error}", option=option) from None
    if not path_part.startswith("//"):
        # A colon is legal in a file's name: 12:30.csv.
        if Path(path).exists():
            return Location(_local(), str(Path(path).absolute()), "")
        raise OptionError(
            f"option {option!r} got {path!r}; a uri starts with a scheme and two slashes, such as s3://bucket/key; "
            "a local name with a colon is written after ./",
            option=option,
            got=path,
        )
    uri = Uri.parse(path, option)
    opened_system = _remote(uri.root, option, login)
    if uri.scheme not in BUCKETS:
        return Location(opened_system, uri.path, uri.root, login)
    # The filesystem says how it spells the bucket or container; the rest of the path is the user's own.
    bucket = _remote_path(uri.root, login)
    return Location(opened_system, f"{bucket}/{uri.path.strip('/')}".strip("/"), uri.root, login)


def replaced_path(directory: str, number: int, path: str) -> str:
    """The path of a file that log entry `number` replaced, where files are renamed, for readers that planned it."""
    return posixpath.join(directory, LOG, "replaced", str(number), path)


def find_replaced(fs: pafs.FileSystem, path: str) -> pafs.FileInfo | None:
    """The file that was at `path` and was replaced since; None = it is gone."""
    directory, inside = posixpath.split(path)
    while directory not in ("", "/"):
        for home in (directory, *_homes(fs, directory, inside)):
            replaced_folder = posixpath.join(home, LOG, "replaced")
            for folder in fs.get_file_info(
                pafs.FileSelector(replaced_folder, allow_not_found=True)
            ):
                info = fs.get_file_info(posixpath.join(folder.path, inside))
                if info.type == pafs.FileType.File:
                    return info
        directory, name = posixpath.split(directory)
        inside = posixpath.join(name, inside)
    return None


def _homes(fs: pafs.FileSystem, directory: str, name: str) -> list[str]:
    """Where the prefixes whose files are called so keep what they replaced. Names without `__` are used again."""
    if "/" in name or "__" not in name:
        return []
    selector = pafs.FileSelector(posixpath.join(directory, LOG, PREFIXES), allow_not_found=True)
    return [info.path for info in fs.get_file_info(selector) if name.startswith(info.base_name)]


def open_planned(root: str, path: str, login: StorageCredentials | None) -> pa.NativeFile:
    """The file at `path`, also when a write has replaced it since the read was planned."""
    fs = reopen(root, login)
    try:
        return fs.open_input_file(path)
    except FileNotFoundError:
        replaced = find_replaced(fs, path) if renames_in(root) else None
        if replaced is None:
            raise
        return fs.open_input_file(replaced.path)


def azure_account(root: str) -> str:
    """The storage account of an abfs uri: `container@account.dfs...`, `account.dfs.../container`, or by environment."""
    host = urlsplit(root).netloc.rpartition("@")[2].partition(":")[0]
    account, dot, _ = host.partition(".")
    return account if dot else os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", account)


def reopen(root: str, login: StorageCredentials | None) -> pafs.FileSystem:
    """The filesystem that a `Location.root` names."""
    return _remote(root, "path", login) if root else _local()


@lru_cache(maxsize=1)
def _local() -> pafs.FileSystem:
    return pafs.LocalFileSystem()


@lru_cache(maxsize=32)
def _from_uri(root: str, login: StorageCredentials | None) -> tuple[pafs.FileSystem, str]:
    if host := _host_without_tls(root):
        _log.warning(
            "%s: requests to the store at %s are not encrypted, and who reads the network sees their signatures and "
            "the rows: serve the store by https, and omit scheme=http (enable_tls=false)",
            mask_url(root.partition("?")[0]),
            host,
        )
    if is_remote(root):
        return filesystem(Address.from_uri(root, () if login is None else login.settings)), ""
    if hdfs.is_hdfs(root) and hdfs.is_installed():
        return hdfs.filesystem(root), ""
    if login is not None and root.startswith("s3:"):
        return _s3_as(root, login), urlsplit(root).netloc
    system_and_path: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(root)
    key = azure_key(login)
    if key and root.startswith("abfs"):
        # A uri with the key in it is refused: it would be shown in plans and logs.
        query = {name: values[-1] for name, values in parse_qs(urlsplit(root).query).items()}
        schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
        settings: dict[str, Any] = {
            name: query[name]
            for name in ("blob_storage_authority", "dfs_storage_authority")
            if name in query
        }
        if query.get("enable_tls") == "false":
            settings |= schemes
        return pafs.AzureFileSystem(
            azure_account(root), account_key=key, **settings
        ), system_and_path[1]
    return system_and_path


def _host_without_tls(root: str) -> str:
    """The host of an object store to which requests go by http over a network; "" = there is none."""
    query = dict(parse_qsl(urlsplit(root).query))
    address = query.get("endpoint_override") or query.get("blob_storage_authority") or ""
    plain = query.get("scheme") == "http" or query.get("enable_tls") == "false"
    if not plain and not address.lower().startswith("http://"):
        return ""
    host = (
        urlsplit(address if "://" in address else f"//{address}").hostname
        or urlsplit(root).hostname
    )
    return "" if host is None or is_of_this_machine(host) else host


def _s3_as(root: str, login: StorageCredentials) -> pafs.FileSystem:
    """By arguments: pyarrow takes credentials in a uri, and shows it in errors."""
    parts = urlsplit(root)
    query: dict[str, Any] = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    strange = sorted(set(query) - {"region", "scheme", "endpoint_override"})
    if strange:
        raise ValueError(f"with option 'storageOptions' the uri takes no {strange[0]!r}")
    if not {"region", "endpoint_override"} & set(query):
        query["region"] = pafs.resolve_s3_region(parts.netloc)
    if login.virtual_hosted:
        query["force_virtual_addressing"] = True
    return pafs.S3FileSystem(
        access_key=login.get("aws_access_key_id"),
        secret_key=login.get("aws_secret_access_key"),
        session_token=login.get("aws_session_token"),
        **query,
    )


def azure_key(login: StorageCredentials | None) -> str | None:
    key = None if login is None else login.get("azure_storage_account_key")
    return key or os.environ.get("AZURE_STORAGE_ACCOUNT_KEY") or os.environ.get("AZURE_STORAGE_KEY")


def _remote(root: str, option: str, login: StorageCredentials | None) -> pafs.FileSystem:
    try:
        return _from_uri(root, login)[0]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OSError) as error:
        scheme = root.split(":", 1)[0]
        secrets = (
            []
            if login is None
            else [value for name, value in login.settings if is_secret_name(name)]
        )
        hide_in_error(error, [*secrets_in(root), *secrets])  # pyarrow quotes the whole uri
        if "libhdfs" in str(error) or "libjvm" in str(error):
            reason = (str(error).splitlines() or [""])[0]
            raise OptionError(
                f"option {option!r} got a {scheme}:// uri, and no Hadoop client was found ({reason}): pip install "
                "'spark-channel[hdfs]', or, to read only, install Java and Hadoop's client with libhdfs, and set "
                "JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob)",
                option=option,
                got=scheme,
            ) from error
        hint = f". {MARK}" if "?" in root else ""
        raise OptionError(
            f"option {option!r} got a {scheme}:// uri that cannot be opened: {error}{hint}",
            option=option,
            got=scheme,
            takes="a local path, or a file, s3, gs, abfs, hdfs, sftp, ftp or ftps uri",
        ) from error


def _remote_path(root: str, login: StorageCredentials | None) -> str:
    return _from_uri(root, login)[1].rstrip("/")


def read_file(location: Location, path: str) -> bytes | None:
    """The whole of a small file; None when there is none. One that is replaced meanwhile is read again."""
    for tries_left in reversed(range(_READS)):
        try:
            with location.fs.open_input_file(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            # Azure ends the read of a blob that is replaced meanwhile; of an object that is removed then, pyarrow
            # says on GCS that the file is closed.
            if location.renames or not tries_left:
                raise
    return None
