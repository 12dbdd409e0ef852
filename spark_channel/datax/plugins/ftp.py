"""ftpreader and ftpwriter: the files of txtfilereader and txtfilewriter, on a server."""

import json
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.files import (
    FileMode,
    TextReader,
    TextWriter,
    text_end,
    text_writer_end,
)
from spark_channel.datax.sections import JobSection, refusal
from spark_channel.datax.value_types import Flag, Positive, Text, Texts

__all__ = ["ftp_reader", "ftp_writer"]


_WITHOUT = {
    "maxTraversalLevel": "folders are read to their ends",
    "bufferSize": "blocks follow the speed limit",
}


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


Protocol = Annotated[Literal["ftp", "ftps", "sftp"], BeforeValidator(_word)]
Pattern = Annotated[Literal["pasv", "port"], BeforeValidator(_word)]


class Server(JobSection):
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
    file_format: Annotated[Literal["text", "csv"], BeforeValidator(_word)] = Field(
        "text", alias="fileFormat"
    )


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


def ftp_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    plugin = context.read(FtpReader, parameter)
    if not plugin.path:
        raise context.missing("path", "a path or a list of paths")
    paths = [_ftp_uri(plugin, path, context) for path in plugin.path]
    where = {"path": paths[0]} if len(paths) == 1 else {"paths": json.dumps(paths)}
    return text_end(plugin, {**where, "storageOptions": _ftp_login(plugin, context)}, context)


def ftp_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    """Files named after `fileName` in the folder `path` itself, so that who fetches them finds nothing else."""
    plugin = context.read(FtpWriter, parameter)
    name = plugin.file_name.strip()
    if not name or "/" in name or name[0] in "._":
        raise refusal(
            context.key("fileName"), plugin.file_name, "a name without /, and not . or _ first"
        )
    end = text_writer_end(
        plugin, _ftp_uri(plugin, plugin.path, context), plugin.write_mode, context
    )
    options = {"storageOptions": _ftp_login(plugin, context), "filePrefix": name}
    return replace(end, endpoint=replace(end.endpoint, options={**end.endpoint.options, **options}))


def _ftp_uri(plugin: FtpReader | FtpWriter, path: str, context: PluginContext) -> str:
    if not path.startswith("/"):
        raise refusal(context.key("path"), path, "a path from the root, such as /home/data")
    if not plugin.host.strip() or any(sign in plugin.host for sign in "/@:"):
        raise refusal(
            context.key("host"), plugin.host, "a name or an address; the port is the key port"
        )
    port = "" if plugin.port is None else f":{plugin.port}"
    return f"{plugin.protocol}://{plugin.host.strip()}{port}{path}"


def _ftp_login(plugin: FtpReader | FtpWriter, context: PluginContext) -> str:
    settings = {
        "user": plugin.username,
        "password": plugin.password,
        "timeout": str(plugin.timeout / 1000),
    }
    if plugin.connect_pattern == "port":
        settings["active"] = "true"
    if plugin.protocol == "sftp":
        settings["host_key"] = plugin.host_key or "any"
        if plugin.key_path and (plugin.use_key or not plugin.password):
            settings |= {
                "private_key_file": plugin.key_path,
                "private_key_password": plugin.key_pass,
            }
        if not plugin.host_key:
            context.warnings.append(
                f"{context.path}: the server's key is not checked, as in DataX; "
                "hostKey takes the one expected, as SHA256:..."
            )
    return json.dumps({name: value for name, value in settings.items() if value})
