"""OpenLineage events of jobs, where its standard variables or files configure a receiver."""

import os
import re
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from spark_channel.masking import mask_text
from spark_channel.observers.notices import Outbox
from spark_channel.progress import JobColumn, JobProgress, JobStatus, Phase

__all__ = ["Dataset", "LineageEvents", "dataset_of"]

_RUNNING_SECONDS = 60.0
_PRODUCER = "urn:spark-channel"
_FACET = "urn:spark-channel:facet:run:1"
_PARENT = "OPENLINEAGE_PARENT_ID"
_URL = re.compile(
    r"(?:jdbc:)?(?P<scheme>[a-z][a-z0-9+.\-]*)://(?P<host>[^/?#]*)/?(?P<path>[^#]*)(?:#(?P<table>.*))?"
)
_FURTHER = re.compile(r" and \d+ more$|; (?:columns|where|query|cursor)=.*", re.DOTALL)
"""Left out of a dataset's name: tables and paths after the first one, and the settings of a stream."""
_SCHEMES = {"postgresql": "postgres", "mariadb": "mysql"}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset's namespace and name, as OpenLineage's conventions have them."""

    namespace: str
    name: str


def dataset_of(text: str) -> Dataset | None:
    """The dataset of a job's end, such as "postgresql postgresql://db:5432/shop#orders"; None: Spark is that end."""
    if not text:
        return None
    connector, _, address = _FURTHER.sub("", text).partition(" ")
    match = _URL.match(address)
    if match:
        scheme = _SCHEMES.get(match["scheme"], match["scheme"])
        path, table = match["path"].strip("/"), match["table"]
        namespace = f"{scheme}://{match['host'].rpartition('@')[2]}"  # without a login
        if table:
            return Dataset(namespace, ".".join(filter(None, (path, table))))
        return Dataset(namespace, path or "/")
    if address.startswith("/"):
        return Dataset("file", address)
    return Dataset(connector or "spark-channel", address or connector)


class LineageEvents:
    """START, RUNNING each minute, and COMPLETE, ABORT or FAIL of each job. A `JobListener`.

    Everything of openlineage-python happens in the outbox's thread, its import included.
    """

    def __init__(self) -> None:
        self.outbox = Outbox("openlineage", self._send, tick=self._running, every=_RUNNING_SECONDS)
        self._lock = threading.Lock()
        self._runs: dict[str, tuple[str, str, JobProgress]] = {}
        """The run, and the time of its START: a clock that was set back must not end it before."""
        self._client: Any = None

    def job_opened(self, progress: JobProgress) -> None:
        run, began = str(uuid.uuid4()), _now()
        with self._lock:
            self._runs[progress.job] = (run, began, progress)
        self.outbox.put(("START", run, began, progress.status()))

    def job_closed(self, progress: JobProgress) -> None:
        with self._lock:
            run_known = self._runs.pop(progress.job, None)
        if run_known is not None:
            (run, began, _), status = run_known, progress.status()
            self.outbox.put((_end_of(status), run, max(began, _now()), status))

    def _running(self) -> None:
        with self._lock:
            runs = list(self._runs.values())
        for run, began, progress in runs:
            self._send(("RUNNING", run, max(began, _now()), progress.status()))

    def _send(self, item: object) -> None:
        assert isinstance(item, tuple)
        if self._client is None:
            try:
                from openlineage.client import OpenLineageClient
            except ImportError:
                raise ValueError(
                    "install spark-channel[openlineage], or unset OPENLINEAGE_URL"
                ) from None
            try:
                self._client = OpenLineageClient()
            except Exception as error:
                raise ValueError(_reason(error)) from None
            _follow_no_redirects(self._client.transport)
        try:
            self._client.emit(event_of(*item))
        except Exception as error:
            raise ValueError(_reason(error)) from None


def _follow_no_redirects(transport: Any) -> None:
    """Of a transport, and of those that it hands events to."""
    session = getattr(transport, "session", None)
    if session is not None:
        session.hooks["response"].append(_refuse_redirect)
    inner = [*getattr(transport, "transports", ()), getattr(transport, "transport", None)]
    for inner_transport in inner:
        if inner_transport is not None:
            _follow_no_redirects(inner_transport)


def _refuse_redirect(response: Any, **_: Any) -> None:
    """A redirected POST arrives as a GET without the event, and its answer would pass for a receipt."""
    if response.is_redirect:
        raise ValueError(
            f"the receiver answered {response.status_code}, a redirect: name the url that it leads to"
        )


def _reason(error: Exception) -> str:
    """Why an event was not taken. The errors of HTTP show the url, which may have a login or a key."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the receiver answered {status}"
    if isinstance(error, OSError):  # as all of requests' are
        return f"the receiver did not answer: {type(error).__name__}"
    return mask_text(str(error)) or type(error).__name__


def event_of(kind: str, run: str, time: str, status: JobStatus) -> Any:
    """The event of a job, by openlineage-python's classes, which check it."""
    from openlineage.client import event_v2 as events
    from openlineage.client import facet_v2 as facets

    spec = status.spec
    source, target = ends = (dataset_of(spec.source), dataset_of(spec.target))
    compares = spec.kind == "verify"  # it reads both, and writes neither
    run_facets: dict[str, Any] = {
        "processing_engine": facets.processing_engine_run.ProcessingEngineRunFacet(
            version=_version(), name="spark-channel", producer=_PRODUCER
        ),
        "spark_channel": _own_facet(facets, status),
    }
    if parent := _parent(facets):
        run_facets["parent"] = parent
    if status.error:
        run_facets["errorMessage"] = facets.error_message_run.ErrorMessageRunFacet(
            message=status.error, programmingLanguage="python", producer=_PRODUCER
        )
    # The target has no rows of a write that publishes all of them in one step, before it is complete.
    counts = kind == "COMPLETE" or (kind != "START" and spec.commit != "job")
    name = spec.name or " -> ".join(end.name for end in ends if end) or spec.kind
    read = facets.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(
        rowCount=status.rows_moved, size=status.bytes_moved, producer=_PRODUCER
    )
    written = facets.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
        rowCount=status.rows, size=status.bytes, producer=_PRODUCER
    )
    return events.RunEvent(
        eventType=events.RunState[kind],
        eventTime=time,
        run=events.Run(run, run_facets),
        job=events.Job(
            os.environ.get("OPENLINEAGE_NAMESPACE") or "spark-channel",
            name,
            {
                "jobType": facets.job_type_job.JobTypeJobFacet(
                    processingType="STREAMING"
                    if spec.batch is not None or spec.kind == "stream"
                    else "BATCH",
                    integration="SPARK_CHANNEL",
                    jobType=spec.kind.upper(),
                    producer=_PRODUCER,
                )
            },
        ),
        inputs=[
            events.InputDataset(
                dataset.namespace,
                dataset.name,
                facets=_of_dataset(facets, dataset, columns),
                inputFacets={} if kind == "START" or compares else {"inputStatistics": read},
            )
            for dataset, columns in (
                (source, spec.source_columns),
                (target if compares else None, ()),
            )
            if dataset is not None
        ],
        outputs=[]
        if target is None or compares
        else [
            events.OutputDataset(
                target.namespace,
                target.name,
                facets={
                    **_of_dataset(facets, target, spec.target_columns),
                    **_column_lineage(facets, source, spec.target_columns),
                },
                outputFacets={"outputStatistics": written} if counts else {},
            )
        ],
        producer=_PRODUCER,
    )


def _own_facet(facets: Any, status: JobStatus) -> Any:
    """The limit, the waits and the commit of a run; see docs/watch.md."""
    spec = status.spec
    facet = facets.RunFacet(producer=_PRODUCER).with_additional_properties(
        limitRowsPerSecond=spec.rows_per_second,
        limitBytesPerSecond=spec.bytes_per_second,
        limitScope=spec.limit_scope if spec.limited else "",
        waitSeconds={reason: round(spent, 3) for reason, spent in status.waits.items()},
        refusedRows=status.dirty_rows,
        retries=max(0, status.attempts - status.tasks),
        replication=spec.part_of,
        commit=spec.commit,
        atLeastOnce=spec.at_least_once,
    )
    facet._schemaURL = _FACET  # noqa: SLF001 - the field's name in every facet
    return facet


def _of_dataset(facets: Any, dataset: Dataset, columns: tuple[JobColumn, ...]) -> dict[str, Any]:
    dataset_facets = {
        "dataSource": facets.datasource_dataset.DatasourceDatasetFacet(
            name=dataset.namespace, uri=dataset.namespace, producer=_PRODUCER
        )
    }
    if columns:
        schema = facets.schema_dataset
        fields = [
            schema.SchemaDatasetFacetFields(
                name=column.name, type=column.type, ordinal_position=number
            )
            for number, column in enumerate(columns, 1)
        ]
        dataset_facets["schema"] = schema.SchemaDatasetFacet(fields=fields, producer=_PRODUCER)
    return dataset_facets


def _column_lineage(
    facets: Any, source: Dataset | None, columns: tuple[JobColumn, ...]
) -> dict[str, Any]:
    """Which columns of the source each one of the target is made of; one that is masked says so."""
    lineage = facets.column_lineage_dataset
    fields = {
        column.name: lineage.Fields(
            inputFields=[
                lineage.InputField(
                    namespace=source.namespace,
                    name=source.name,
                    field=origin,
                    transformations=[
                        lineage.Transformation(
                            type="DIRECT",
                            subtype="TRANSFORMATION" if column.how else "IDENTITY",
                            description=column.how,
                            masking=column.masked,
                        )
                    ],
                )
                for origin in column.origins
            ],
            transformationDescription=column.how,
            transformationType="MASKED" if column.masked else "" if column.how else "IDENTITY",
        )
        for column in columns
        if source is not None and column.origins
    }
    if not fields:
        return {}
    facet = lineage.ColumnLineageDatasetFacet(fields=fields, producer=_PRODUCER)
    return {"columnLineage": facet}


def _parent(facets: Any) -> Any:
    """The run that started this program: Airflow's operators and templates set OPENLINEAGE_PARENT_ID."""
    namespace, _, job_run = os.environ.get(_PARENT, "").partition("/")
    name, _, run = job_run.rpartition("/")
    try:
        uuid.UUID(run)
    except ValueError:
        return None
    parent = facets.parent_run
    return parent.ParentRunFacet(
        run=parent.Run(runId=run),
        job=parent.Job(namespace=namespace, name=name),
        producer=_PRODUCER,
    )


def _end_of(status: JobStatus) -> str:
    if status.phase is not Phase.FAILED:
        return "COMPLETE"
    return "ABORT" if status.error == "it ended before all its tasks were done" else "FAIL"


def _version() -> str:
    try:
        return version("spark-channel")
    except PackageNotFoundError:  # shipped to a driver as a zip
        return "unknown"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
