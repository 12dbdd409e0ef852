"""ftpreader and ftpwriter: the files of txtfilereader and txtfilewriter, on a server."""

import json
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from spark_channel.jobs.place import End, Place
from spark_channel.jobs.plugins.files import FileMode, TextReader, TextWriter, text_end, text_writer_end
from spark_channel.jobs.values import Flag, Positive, Section, Text, Texts, refusal

__all__ = ["ftp_reader", "ftp_writer"]

_WITHOUT = {
    "maxTraversalLevel": "folders are read to their ends",
    "bufferSize": "blocks follow the speed limit",
}


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


Protocol = Annotated[Literal["ftp", "ftps", "sftp"], BeforeValidator(_word)]
Pattern = Annotated[Literal["pasv", "port"], BeforeValidator(_word)]


class Server(Section):
    """The address of the server, and the login. `timeout` is in milliseconds."""

    protocol: Protocol
    host: Text
    port: Positive | None = None
    timeout: Positive = 60_000
    connect_pattern: Pattern = "pasv"
    username: Text = ""
    password: Text = ""
    use_key: Flag = False
    key_path: Text = ""
    key_pass: Text = ""
    host_key: Text = ""


class FtpReader(Server, TextReader):
    ignored: ClassVar[dict[str, str]] = _WITHOUT

    path: Texts
    file_format: Annotated[Literal["text", "csv"], BeforeValidator(_word)] = Field("text", alias="fileFormat")


class FtpWriter(Server, TextWriter):
    ignored: ClassVar[dict[str, str]] = {
        "maxFileSize": "a file is as large as its task; see the option maxBytesPerFile",
        "suffix": "file names end with the format's own suffix",
        "markDoneFileName": "files are visible when they are whole, and the job is done",
        "markDoingFileName": "files are visible when they are whole, and the job is done",
        "maxRetryTime": "tasks are tried again",
        "lineDelimiter": r"lines end with \n",
        "skipHeader": "a writer skips nothing",
        "column": "the columns are those of the reader",
    }

    path: Text
    file_name: Text
    write_mode: FileMode = "append"
    file_format: Annotated[Literal["text", "csv"], BeforeValidator(_word)] = "text"


def ftp_reader(parameter: dict[str, Any], place: Place) -> End:
    given = place.read(FtpReader, parameter)
    if not given.path:
        raise place.missing("path", "a path or a list of paths")
    paths = [_uri(given, path, place) for path in given.path]
    where = {"path": paths[0]} if len(paths) == 1 else {"paths": json.dumps(paths)}
    return text_end(given, {**where, "storageOptions": _login(given, place)}, place)


def ftp_writer(parameter: dict[str, Any], place: Place) -> End:
    """Files named after `fileName` in the folder `path` itself, so that who fetches them finds nothing else."""
    given = place.read(FtpWriter, parameter)
    name = given.file_name.strip()
    if not name or "/" in name or name[0] in "._":
        raise refusal(place.key("fileName"), given.file_name, "a name without /, and not . or _ first")
    end = text_writer_end(given, _uri(given, given.path, place), given.write_mode, place)
    more = {"storageOptions": _login(given, place), "filePrefix": name}
    return replace(end, endpoint=replace(end.endpoint, options={**end.endpoint.options, **more}))


def _uri(given: FtpReader | FtpWriter, path: str, place: Place) -> str:
    if not path.startswith("/"):
        raise refusal(place.key("path"), path, "a path from the root, such as /home/data")
    if not given.host.strip() or any(sign in given.host for sign in "/@:"):
        raise refusal(place.key("host"), given.host, "a name or an address; the port is the key port")
    port = "" if given.port is None else f":{given.port}"
    return f"{given.protocol}://{given.host.strip()}{port}{path}"


def _login(given: FtpReader | FtpWriter, place: Place) -> str:
    settings = {"user": given.username, "password": given.password, "timeout": str(given.timeout / 1000)}
    if given.connect_pattern == "port":
        settings["active"] = "true"
    if given.protocol == "sftp":
        settings["host_key"] = given.host_key or "any"
        if given.key_path and (given.use_key or not given.password):
            settings |= {"private_key_file": given.key_path, "private_key_password": given.key_pass}
        if not given.host_key:
            place.warnings.append(
                f"{place.path}: the server's key is not checked, as in DataX; "
                "hostKey takes the one expected, as SHA256:..."
            )
    return json.dumps({name: value for name, value in settings.items() if value})
