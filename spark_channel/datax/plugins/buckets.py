"""DataX's ossreader and osswriter, Addax's s3reader and s3writer: files in a bucket, over S3's protocol."""

import ipaddress
import json
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import Field

from spark_channel.datax.columns import NamedColumns
from spark_channel.datax.plugin_context import ParsedPlugin, PluginContext
from spark_channel.datax.plugins.files import (
    FileMode,
    TextReader,
    TextWriter,
    file_connector,
    text_end,
    text_writer_end,
    typed_end,
    typed_writer_end,
)
from spark_channel.datax.sections import JobSection, refusal
from spark_channel.datax.value_types import Flag, Positive, Text, Texts

__all__ = ["oss_reader", "oss_writer", "s3_reader", "s3_writer"]


_PROXY = ("Host", "Port", "Username", "Password", "Domain", "Workstation")
_OSS_IGNORED = {
    **{f"proxy{name}": "the endpoint is asked without a proxy" for name in _PROXY},
    "hadoopConfig": "files are read and written without Hadoop",
    "parquetSchema": "the files have their own",
    "balanceThreshold": "files are cut into splits of about equal bytes",
    "successOnNoObject": "a source without files is an error, unless its columns are given",
    "encrypt": "set the bucket's own encryption",
}
_NULL = "\\N"
_MEGABYTE = 1 << 20


class Bucket(JobSection):
    """The address of a bucket, and the login."""

    endpoint: Text
    access_id: Text = ""
    access_key: Text = ""
    bucket: Text


class Oss(Bucket):
    ignored: ClassVar[dict[str, str]] = _OSS_IGNORED
    cname: Flag = False


class S3(Bucket):
    endpoint: Text = ""
    region: Text = ""
    path_style_access_enabled: Flag = False
    ssl_enabled: Flag = True


class ObjectReader(TextReader):
    """Which objects are read; DataX's newer plugin names them `path`."""

    ignored: ClassVar[dict[str, str]] = {"bufferSize": "blocks follow the speed limit"}

    objects: Texts = Field((), alias="object")
    path: Texts = ()
    file_format: Text = ""
    file_type: Text = ""


class ObjectWriter(TextWriter):
    ignored: ClassVar[dict[str, str]] = {
        "suffix": "file names end with the format's own suffix",
        "defaultSuffix": "file names end with the format's own suffix",
        "generateEmptyFile": "an empty write leaves one file without rows",
        "lineDelimiter": r"lines end with \n",
    }
    refused: ClassVar[dict[str, str]] = {"syncMode": "objects are not copied as they are; rows are"}

    objects: Text = Field(alias="object")
    write_mode: FileMode = "append"
    max_file_size: Positive | None = None
    write_single_object: Flag = False
    file_type: Text = ""
    column: NamedColumns = ()


class OssReader(Oss, ObjectReader):
    ignored: ClassVar[dict[str, str]] = {**Oss.ignored, **ObjectReader.ignored}


class S3Reader(S3, ObjectReader):
    ignored: ClassVar[dict[str, str]] = {
        **ObjectReader.ignored,
        "writeMode": "a reader writes nothing",
    }


class OssWriter(Oss, ObjectWriter):
    ignored: ClassVar[dict[str, str]] = {**Oss.ignored, **ObjectWriter.ignored}


class S3Writer(S3, ObjectWriter):
    null_format: Text = _NULL


def oss_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    return _reader(context.read(OssReader, parameter), context)


def s3_reader(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    return _reader(context.read(S3Reader, parameter), context)


def oss_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    return _writer(context.read(OssWriter, parameter), context)


def s3_writer(parameter: dict[str, Any], context: PluginContext) -> ParsedPlugin:
    return _writer(context.read(S3Writer, parameter), context)


def _reader(plugin: OssReader | S3Reader, context: PluginContext) -> ParsedPlugin:
    names = plugin.objects or plugin.path
    if not names:
        raise context.missing("object", "an object, or a list of them; * and ? are taken")
    # A uri's parameters begin with ?, so the wildcard of one character is written as a class.
    paths = [_uri(plugin, name.replace("?", "[!/]"), context) for name in names]
    where = {"path": paths[0]} if len(paths) == 1 else {"paths": json.dumps(paths)}
    where |= _login(plugin, context)
    connector, _ = _format(plugin, context)
    if connector == "csv":
        return text_end(plugin, where, context)
    return typed_end(plugin, connector, where, context)


def _writer(plugin: OssWriter | S3Writer, context: PluginContext) -> ParsedPlugin:
    """The objects that begin with `object` become a folder of that name, so that truncate touches nothing else."""
    if plugin.write_single_object:
        raise refusal(
            context.key("writeSingleObject"),
            "true",
            "false: each task writes objects, and one entry publishes them",
        )
    name = plugin.objects.strip("/")
    if not name or "?" in name:
        raise refusal(
            context.key("object"), plugin.objects, "the name of a folder in the bucket, without ?"
        )
    target = _uri(plugin, name, context)
    connector, word = _format(plugin, context)
    context.warnings.append(f"{context.path}: the files go into the folder {name} of the bucket")
    if connector == "csv":
        texts = plugin.model_copy(update={"file_format": word})
        end = text_writer_end(texts, target, plugin.write_mode, context)
    else:
        end = typed_writer_end(
            connector, target, plugin.column, plugin.compress, plugin.write_mode, context
        )
    options = _login(plugin, context)
    if plugin.max_file_size is not None:
        options["maxBytesPerFile"] = str(plugin.max_file_size * _MEGABYTE)
    return replace(end, endpoint=replace(end.endpoint, options={**end.endpoint.options, **options}))


def _format(
    plugin: OssReader | S3Reader | OssWriter | S3Writer, context: PluginContext
) -> tuple[str, str]:
    """(the connector, DataX's word): `fileFormat` is DataX's key, `fileType` Addax's."""
    key = "fileType" if plugin.file_type.strip() else "fileFormat"
    word = (plugin.file_type.strip() or plugin.file_format.strip() or "text").lower()
    return file_connector(word, context, key), word


def _uri(plugin: Oss | S3, name: str, context: PluginContext) -> str:
    scheme, address = _address(plugin, context)
    query = {"scheme": scheme} if scheme == "http" else {}
    query["region"] = _region(plugin, address)
    if address:
        query["endpoint_override"] = address
    return f"s3://{quote(plugin.bucket)}/{name.lstrip('/')}?{urlencode(query)}"


def _address(plugin: Oss | S3, context: PluginContext) -> tuple[str, str]:
    """(http or https, host and port); no host: the one of AWS."""
    if isinstance(plugin, Oss) and plugin.cname:
        raise refusal(
            context.key("cname"), "true", "false: give the endpoint of the bucket's region"
        )
    text = plugin.endpoint.strip().rstrip("/")
    plain = isinstance(plugin, S3) and not plugin.ssl_enabled
    takes = "a host, such as https://oss-cn-hangzhou.aliyuncs.com"
    try:
        parts = urlsplit(text if "://" in text else f"{'http' if plain else 'https'}://{text}")
    except ValueError:  # a bracket that is not closed
        raise refusal(context.key("endpoint"), plugin.endpoint, takes) from None
    if parts.scheme not in ("http", "https") or parts.path or parts.query or parts.username:
        raise refusal(context.key("endpoint"), plugin.endpoint, takes)
    if isinstance(plugin, Oss) and not parts.hostname:
        raise context.missing("endpoint", "the address of the bucket's region")
    if isinstance(plugin, S3) and parts.netloc in (
        "",
        "s3.amazonaws.com",
        f"s3.{plugin.region}.amazonaws.com",
    ):
        return parts.scheme, ""
    return parts.scheme, parts.netloc


def _region(plugin: Oss | S3, address: str) -> str:
    if isinstance(plugin, S3):
        return plugin.region.strip() or "us-east-1"
    labels = [label.removesuffix("-internal") for label in address.partition(":")[0].split(".")]
    return next((label for label in labels if label.startswith("oss-")), "us-east-1")


def _login(plugin: Oss | S3, context: PluginContext) -> dict[str, str]:
    if bool(plugin.access_id) != bool(plugin.access_key):
        raise context.missing(
            "accessKey" if plugin.access_id else "accessId", "both, or neither: the environment's"
        )
    settings = {}
    if plugin.access_id:
        settings = {
            "aws_access_key_id": plugin.access_id,
            "aws_secret_access_key": plugin.access_key,
        }
    if _virtual_hosted(plugin, _address(plugin, context)[1]):
        settings["aws_virtual_hosted_style_request"] = "true"
    return {"storageOptions": json.dumps(settings)} if settings else {}


def _virtual_hosted(plugin: Oss | S3, address: str) -> bool:
    """Whether the bucket is a part of the host's name: OSS takes nothing else, and AWS SDKs send nothing else.

    A host that is an address, or has no domain, cannot have such names.
    """
    host = urlsplit(f"//{address}").hostname or ""
    if not host or "." not in host or (isinstance(plugin, S3) and plugin.path_style_access_enabled):
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False
