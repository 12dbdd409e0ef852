"""The one service on the driver's host: jobs, counters, grants. Light to import.

The driver's side, in its own Python::

    server = ServiceServer(host="127.0.0.1")       # port 0 = a free one; .start() / .stop() or `with`
    address = server.start()                       # ServiceAddress(host, port, token): plain data, picklable
    server.jobs.subscribe(listener)                # JobListener.job_opened / .job_closed, with a JobProgress
    server.jobs.subscribe(ProgressDisplay())       # live line, cell or log lines; mode="off": none
    withdraw = advertise(address, jvm_pid)         # planner workers now find this one
    job = server.jobs.open(spec)                   # owned: server.jobs.enter(job, Phase.DONE) closes it

From another process on the driver's host (a planner worker)::

    with ServiceControl(address) as control:
        job = control.open_job(JobSpec("write", target="sqlite x.db#t", commit="job"))
        control.enter(job, Phase.PUBLISHING); control.enter(job, Phase.DONE, rows=336776)

A Spark task::

    job = run_id(plan, execution, stage)           # every task of an action computes the same
    with ServiceClient(address, job, spec) as client:          # pickles as its arguments
        counters = client.counters(task, attempt, rows_expected=split.rows)
        limiter = client.limiter()                 # None without a limit; else a channel.Limiter on grants
        counters.follow(group.statistics, producers=threads)   # or .read/.pushed/.wrote/.waited by hand
        ...
        counters.enter(Phase.DONE)                 # or FAILED, before the client closes

One service per driver, from a planner worker, which may not outlive the call::

    address = ensure_service(ServiceSettings(host=driver_host))    # found, or started as its own process

A job that its first client opens (an unknown id) is closed by the service once all of `spec.tasks` are
done, or when no client was heard for 5 s. A DataFrame used twice is two jobs with one address.
"""

from typing import TYPE_CHECKING

from spark_channel import lazy

if TYPE_CHECKING:
    from spark_channel.service.client import ServiceClient
    from spark_channel.service.display import ProgressDisplay
    from spark_channel.service.jobs import JobRegistry
    from spark_channel.service.launch import (
        ServiceControl,
        ServiceSettings,
        advertise,
        ensure_service,
        find_service,
    )
    from spark_channel.service.limit_control import LimitControl
    from spark_channel.service.protocol import (
        ServiceAddress,
        SharedLimitAddress,
        TlsFiles,
        new_job_id,
        run_id,
    )
    from spark_channel.service.server import ServiceServer
    from spark_channel.service.shared_limit import (
        Probe,
        SharedLimit,
        find_shared_limit,
        shared_speed,
        signal_value,
        sql_value,
    )
else:
    __getattr__, __dir__ = lazy.exports(
        __name__,
        {
            "client": ["ServiceClient"],
            "display": ["ProgressDisplay"],
            "jobs": ["JobRegistry"],
            "launch": [
                "ServiceControl",
                "ServiceSettings",
                "advertise",
                "ensure_service",
                "find_service",
            ],
            "limit_control": ["LimitControl"],
            "protocol": [
                "ServiceAddress",
                "SharedLimitAddress",
                "TlsFiles",
                "new_job_id",
                "run_id",
            ],
            "server": ["ServiceServer"],
            "shared_limit": [
                "Probe",
                "SharedLimit",
                "find_shared_limit",
                "shared_speed",
                "signal_value",
                "sql_value",
            ],
        },
    )

__all__ = [
    "JobRegistry",
    "LimitControl",
    "Probe",
    "ProgressDisplay",
    "ServiceAddress",
    "ServiceClient",
    "ServiceControl",
    "ServiceServer",
    "ServiceSettings",
    "SharedLimit",
    "SharedLimitAddress",
    "TlsFiles",
    "advertise",
    "ensure_service",
    "find_service",
    "find_shared_limit",
    "new_job_id",
    "run_id",
    "shared_speed",
    "signal_value",
    "sql_value",
]
