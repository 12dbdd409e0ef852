"""The page: its tokens, its policy, its events, and in a real browser a job that is watched, paused and resumed."""

import http.client
import json
import re
import shutil
import sqlite3
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import spark_channel
from spark_channel.errors import ServiceUnavailableError
from spark_channel.local import LocalEngine
from spark_channel.local import run as local
from spark_channel.observe import page as page_module
from spark_channel.observe.page import PageServer, RemoteView
from spark_channel.observers import view as view_module
from spark_channel.observers.view import limit_request
from spark_channel.planning import TransferSpec
from spark_channel.progress import JobSpec, Phase, Snapshot, TransferReport
from spark_channel.service import ServiceAddress, ServiceServer, SharedLimit
from spark_channel.service import ended_jobs as kept_jobs
from spark_channel.service.discovery import ServiceDirectory
from spark_channel.service.ended_jobs import MOST_KEPT, ended_jobs, keep_ended
from spark_channel.service.http_server import Caller
from spark_channel.service.protocol import READ_SCOPE, RequestError
from spark_channel.transfers.dispatch import carry_out
from tests.servers.browser import Browser
from tests.service.helpers import wait_for


@pytest.fixture
def page(server: ServiceServer) -> Iterator[PageServer]:
    shown = PageServer({server.address: server.view})
    yield shown
    shown.stop()


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def browser(one_browser: Browser, page: PageServer) -> Iterator[Browser]:
    """A browser that leaves the page before the page ends, so that it does not ask again."""
    del page
    yield one_browser
    one_browser.open("about:blank")
    one_browser.complaints()


def token_of(link: str) -> str:
    return link.partition("#")[2]


def asked(
    page: PageServer, method: str, path: str, token: str | None = None, body: Any = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(page.address.split(":")[2][:-1]), timeout=10
    )
    try:
        headers = {} if token is None else {"X-Spark-Channel-Token": token}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        # A stream of events has no end: its first part is enough.
        content = (
            answer.read1()
            if "event-stream" in answer.getheader("Content-Type", "")
            else answer.read()
        )
        return answer.status, content, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def tasks(count: int, rows: int, sequence: int = 1) -> list[Snapshot]:
    return [
        Snapshot.from_json(
            {
                "task": task,
                "attempt": 0,
                "sequence": sequence,
                "phase": "running",
                "rows_pushed": rows,
            }
        )
        for task in range(count)
    ]


@pytest.mark.parametrize("path", ["/", "/page.js", "/page.css", "/icon.svg"])
def test_files_hold_no_data_and_carry_the_strictest_policy(page: PageServer, path: str) -> None:
    status, content, headers = asked(page, "GET", path)
    assert status == 200
    assert content
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_the_page_asks_for_nothing_of_another_host_and_by_relative_urls_only() -> None:
    static = Path(page_module.__file__).parent / "static"
    html = (static / "index.html").read_text()
    for name in ("page.js", "page.css", "icon.svg"):
        assert f'"{name}"' in html
    assert "style=" not in html
    assert "<script>" not in html
    script = (static / "page.js").read_text()
    assert "innerHTML" not in script
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")


def test_without_a_token_or_with_a_wrong_one_there_are_no_events(page: PageServer) -> None:
    assert asked(page, "GET", "/events")[0] == 401
    assert asked(page, "GET", "/events", "wrong")[0] == 401
    assert asked(page, "POST", "/v1/limit", None, {})[0] == 401
    assert asked(page, "GET", "/events", token_of(page.link(change=False)))[0] == 200


def test_a_token_that_reads_changes_nothing(page: PageServer, server: ServiceServer) -> None:
    job = server.jobs.open(JobSpec("read", rows_per_second=1000))
    body = {"limit": f"job:{job}", "action": "pause"}
    status, why, _ = asked(page, "POST", "/v1/limit", token_of(page.link(change=False)), body)
    assert status == 403
    assert b"reads the page" in why
    assert asked(page, "POST", "/v1/limit", token_of(page.link(change=True)), body)[0] == 200
    assert server.view.watch(None, 0)["limits"][0]["paused"]


def test_the_tokens_of_the_page_do_not_open_the_service(
    page: PageServer, server: ServiceServer
) -> None:
    for change in (False, True):
        assert server.tokens.scope_of(f"Bearer {token_of(page.link(change=change))}") is None
    assert asked(page, "GET", "/events", server.token)[0] == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"limit": "x", "action": "stop"},
        {"limit": "x", "action": "set"},
        {"limit": "x", "action": "set", "rows_per_second": 0},
        {"limit": "x", "action": "set", "rows_per_second": 1.5},
        {"limit": "x", "action": "set", "rows_per_second": True},
        {"limit": "x", "action": "set", "rows_per_second": 1 << 60},
        {"limit": "x", "action": "set", "bytes_per_second": "5"},
        {"limit": 5, "action": "pause"},
        {"limit": "gone", "action": "pause"},
        {"limit": "x", "action": "pause", "more": 1},
    ],
)
def test_changes_that_make_no_sense_are_refused(page: PageServer, body: dict[str, Any]) -> None:
    status, why, _ = asked(page, "POST", "/v1/limit", token_of(page.link(change=True)), body)
    assert status == 400
    assert why
    if body.get("limit") == "x" and "more" not in body:
        with pytest.raises(ValueError, match=r"speed|action|rows_per_second"):
            limit_request(body)


def test_of_a_stream_the_last_batch_is_shown(server: ServiceServer) -> None:
    for batch in range(5):
        spec = JobSpec("write", name="orders", target="sqlite x#t", query="q", batch=batch)
        job = server.jobs.open(spec)
        server.jobs.enter(job, Phase.DONE)
    assert [each["batch"] for each in server.view.watch(None, 0)["jobs"]] == [4]


def test_a_service_that_does_not_answer_is_left_out(
    silent_port: int, server: ServiceServer
) -> None:
    silent = RemoteView(ServiceAddress("127.0.0.1", silent_port, "token"))
    server.jobs.open(JobSpec("read", name="seen"))
    page = PageServer(
        {ServiceAddress("127.0.0.1", silent_port, "t"): silent, server.address: server.view}
    )
    try:
        token = token_of(page.link(change=False))
        for _ in range(2):
            assert asked(page, "GET", "/events", token)[0] == 200
    finally:
        page.stop()
        silent.close()


def test_jobs_of_a_service_that_is_slow_for_a_while_stay_on_the_page(
    server: ServiceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them, a job that runs would be shown as one whose program has ended."""
    job = server.jobs.open(JobSpec("read", rows_per_second=1000))
    remote = RemoteView(server.address)
    try:
        shown = remote.watch(job, 0.0)
        assert shown["detail"]["job"] == job

        def silent(*_: object) -> None:
            raise ServiceUnavailableError("timed out")

        monkeypatch.setattr(remote._control, "call", silent)
        for _ in range(2):
            assert remote.watch(job, 0.0) == {**shown, "detail": None}
    finally:
        remote.close()


def test_a_viewer_cannot_make_a_service_be_left_out(page: PageServer) -> None:
    token = token_of(page.link(change=False))
    assert asked(page, "GET", "/events?job=" + "x" * 201, token)[0] == 400
    assert asked(page, "GET", "/events?job=a%00b", token)[0] == 400


def test_of_many_tasks_those_that_are_not_sent_any_more_are_gone(
    server: ServiceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_module, "_MOST_TASKS", 3)
    job = server.jobs.open(JobSpec("read"))
    server.jobs.report(job, "client", tasks(5, 10))
    differences = page_module._Differences()

    def sent() -> dict[str, Any]:
        text = differences.event([server.view.watch(job, differences.since)]).decode()
        return dict(json.loads(text.partition("data: ")[2])["detail"])

    first = sent()
    assert [task[1] for task in first["tasks"]] == [0, 1, 2]
    assert first["gone"] == []
    done = [Snapshot.from_json({"task": 2, "attempt": 0, "sequence": 2, "phase": "done"})]
    server.jobs.report(job, "client", done)
    second = sent()
    assert [task[1] for task in second["tasks"]] == [3]
    assert second["gone"] == [first["tasks"][2][0]]


def test_of_two_limits_of_one_name_the_one_that_a_change_goes_to_is_shown() -> None:
    views = [
        {"jobs": [], "limits": [{"name": "db", "rows_per_second": rows}], "detail": None}
        for rows in (1, 2)
    ]
    text = page_module._Differences().event(views).decode()
    assert json.loads(text.partition("data: ")[2])["limits"] == views[0]["limits"]


def test_viewers_are_bounded_and_those_who_left_are_forgotten(
    page: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "_MOST_VIEWERS", 2)
    monkeypatch.setattr(page_module, "_EVERY", 0.01)
    token = token_of(page.link(change=False))
    port = int(page.address.split(":")[2][:-1])
    viewers = []
    for _ in range(2):
        viewer = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        viewer.request("GET", "/events", headers={"X-Spark-Channel-Token": token})
        viewer.getresponse().read1()
        viewers.append(viewer)
    assert asked(page, "GET", "/events", token)[0] == 400
    for viewer in viewers:
        viewer.close()
    wait_for(lambda: asked(page, "GET", "/events", token)[0] == 200, "the viewers to be forgotten")


def test_viewers_who_come_at_the_same_time_are_bounded(page: PageServer) -> None:
    caller = Caller(READ_SCOPE, "")
    shown = [page._events(b"", caller) for _ in range(page_module._MOST_VIEWERS)]
    with pytest.raises(RequestError, match="32 browsers show this page already"):
        page._events(b"", caller)
    for each in shown:
        assert isinstance(each.content, Iterator)
        next(each.content)
        each.content.close()  # type: ignore[attr-defined] # a generator
    assert page._viewers == 0


def test_the_page_goes_on_when_the_directory_of_services_is_gone(
    page: PageServer, server: ServiceServer, runtime_directory: Path
) -> None:
    """As /run/user/UID, when the user who runs the job logs out."""
    server.jobs.open(JobSpec("transfer", name="orders"))
    shutil.rmtree(runtime_directory)
    ended, own = page._views.all()
    assert ended.watch(None, 0.0)["jobs"] == []
    assert [job["name"] for job in own.watch(None, 0.0)["jobs"]] == ["orders"]


def test_the_page_ends_while_it_is_watched(page: PageServer) -> None:
    viewer = http.client.HTTPConnection(
        "127.0.0.1", int(page.address.split(":")[2][:-1]), timeout=10
    )
    viewer.request(
        "GET", "/events", headers={"X-Spark-Channel-Token": token_of(page.link(change=True))}
    )
    answer = viewer.getresponse()
    assert answer.read1()
    page.stop()
    while answer.read1():
        pass
    viewer.close()


def test_shared_limits_of_other_services_are_shown_and_changed() -> None:
    with SharedLimit("orders-db", "10k") as limit:
        page = PageServer()
        try:
            token = token_of(page.link(change=True))
            body = {
                "limit": "orders-db",
                "action": "set",
                "rows_per_second": 5000,
                "bytes_per_second": None,
            }
            assert asked(page, "POST", "/v1/limit", token, body)[0] == 200
            assert limit.status().rows_per_second == 5000
        finally:
            page.stop()


def test_a_real_job_is_watched_paused_and_resumed_in_a_browser(
    browser: Browser, page: PageServer
) -> None:
    running = threading.Thread(
        target=lambda: spark_channel.transfer(
            None,
            reader={"name": "generator", "rows": 12_000},
            writer={"name": "discard"},
            job_id="copy-orders",
            rows_per_second=2000,
            channels=2,
        )
    )
    running.start()
    try:
        browser.open(page.link(change=True))
        browser.wait(
            "document.querySelector('#control button') && document.querySelector('#phase').innerText == 'running'"
        )
        assert browser.text("#title") == "generator → discard"
        assert "copy-orders" in browser.text("#ends")
        assert browser.run("return location.hash") == ""
        # It lives: the rows grow without a reload.
        rows = "document.querySelector('#figures dd').innerText"
        first = browser.run(f"return {rows}")
        browser.wait(f"{rows} != {json.dumps(first)}")
        browser.click("#control button.second")
        browser.wait("document.querySelector('#phase').innerText == 'paused'", 2)
        browser.wait(
            "document.querySelector('#figures div:nth-child(2) dd').innerText.startsWith('0')", 10
        )
        assert "left" not in browser.text("#progress-text")  # a clock that stands still
        stopped = browser.run(f"return {rows}")
        browser.wait("document.querySelector('#waits-text').innerText.includes('paused')", 2)
        assert browser.run(f"return {rows}") == stopped
        # By keyboard: a new limit, and Enter.
        browser.run(
            "const exact = document.querySelector('#control input[type=text]'); exact.focus(); exact.select()"
        )
        browser.keys("50k\ue007")  # more than twice as much: it asks, and the answer has the focus
        assert "from 2k to 50k rows" in browser.text("#control .ask p")
        assert browser.run("return document.activeElement.innerText") == "Raise to 50k"
        browser.keys("\ue007")
        browser.wait("document.querySelector('#control .message').innerText == 'Set to 50k.'", 2)
        browser.wait("document.querySelector('#control .back').innerText == 'Back to 2k'", 2)
        browser.click("#control .back")
        browser.wait("document.querySelector('#control .message').innerText == 'Set to 2k.'", 2)
        browser.click("#control .back")  # one click: it does not ask
        browser.wait("document.querySelector('#control .message').innerText == 'Set to 50k.'", 2)
        browser.click("#control button.second")
        browser.wait("['done', 'lost'].includes(document.querySelector('#phase').innerText)", 20)
        assert browser.complaints() == []
    finally:
        running.join(60)
    assert not running.is_alive()


def test_a_thousand_tasks_on_a_phone_in_the_dark(
    browser: Browser, page: PageServer, server: ServiceServer
) -> None:
    job = server.jobs.open(
        JobSpec("transfer", name="<img src=x onerror=alert(1)>", tasks=1000, rows_per_second=1000)
    )
    server.jobs.report(job, "one", tasks(1000, 10))
    browser.emulate(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=740,
        deviceScaleFactor=2,
        mobile=True,
    )
    browser.emulate(
        "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    try:
        browser.open(page.link(change=False))
        browser.wait("document.querySelectorAll('#tasks tr').length == 1000")
        server.jobs.report(job, "one", tasks(1, 7777, 2))
        browser.wait("document.querySelector('#tasks tr').children[2].innerText == '7.78k'", 5)
        assert browser.text("#title") == "<img src=x onerror=alert(1)>"
        wide = browser.run("return document.documentElement.scrollWidth")
        assert wide <= 360
        assert (
            browser.run("return getComputedStyle(document.body).backgroundColor")
            == "rgb(18, 22, 28)"
        )
        # With a token that reads, no control is shown, and the page says so.
        assert browser.text("#watching") == "watching only"
        assert "Watching only" in browser.text("#control .message")
        assert browser.run(
            "return [...document.querySelectorAll('#control input, #control button')]"
            ".every((each) => !each.checkVisibility())"
        )
        # A list that would be cut is a drop-down.
        assert browser.run(
            "return ['#jobs', '#jobs-select'].map((each) => document.querySelector(each).checkVisibility())"
        ) == [False, True]
        # For a screen reader: each control and picture has a name, each column a header.
        assert (
            browser.run(
                """return [...document.querySelectorAll('input, select, button, meter, progress, svg')].filter((each) =>
                 each.checkVisibility() && !(each.labels && each.labels.length) && !each.innerText &&
                 !each.getAttribute('aria-label') && !each.getAttribute('aria-labelledby'))
                 .map((each) => each.outerHTML)"""
            )
            == []
        )
        assert browser.complaints() == []
    finally:
        browser.emulate("Emulation.clearDeviceMetricsOverride")
        browser.emulate("Emulation.setEmulatedMedia", features=[])


def test_a_read_and_a_write_of_one_execution_of_spark_are_one_card(
    browser: Browser, page: PageServer, server: ServiceServer
) -> None:
    write = server.jobs.open(JobSpec("write", target="sqlite /data/marts.db#orders"))
    read = server.jobs.open(
        JobSpec("read", source="postgresql postgresql://db:5432/shop#crm.orders", rows_per_second=9)
    )
    other = server.jobs.open(JobSpec("read", source="postgresql postgresql://db:5432/shop#stock"))
    for job, execution in ((write, "4"), (read, "4"), (other, "5")):
        snapshot = {"task": 0, "attempt": 0, "phase": "running", "execution": execution}
        server.jobs.report(job, "one", [Snapshot.from_json(snapshot)])
    browser.open(page.link(change=True))
    browser.wait("document.querySelectorAll('#jobs button').length == 2")
    browser.run(
        "[...document.querySelectorAll('#jobs button')].find((each) => each.innerText.includes('crm')).click()"
    )
    parts = "[...document.querySelectorAll('#parts button')].map((each) => each.innerText)"
    browser.wait(f"{parts}.length == 2")
    assert browser.run(f"return {parts}") == ["read shop.crm.orders, limited", "write orders"]
    assert browser.text("#title") == "shop.crm.orders"
    assert "PostgreSQL db:5432" in browser.text("#ends")
    browser.click("#parts button:nth-child(2)")
    browser.wait("document.querySelector('#title').innerText == 'orders'")
    assert browser.run("return document.querySelectorAll('#jobs [aria-current]').length") == 1
    server.jobs.enter(write, Phase.DONE, rows=7)
    browser.wait("document.querySelector('#job').className == 'still'")
    labels = "[...document.querySelectorAll('#figures dt')].map((each) => each.innerText)"
    assert browser.run(f"return {labels}")[-3:] == ["Took", "Started", "Ended"]


def test_a_limit_far_above_the_speed_is_an_arrow_and_the_chart_has_the_scale_of_the_speed(
    browser: Browser, page: PageServer, server: ServiceServer
) -> None:
    slow = server.jobs.open(JobSpec("read", source="csv /a/slow.csv", rows_per_second=100_000))
    snapshot = {"task": 0, "attempt": 0, "phase": "running", "rows_pushed": 100, "seconds": 8.0}
    server.jobs.report(slow, "one", [Snapshot.from_json(snapshot)])
    browser.open(page.link(change=False))
    browser.wait("document.querySelector('#above').innerText == '↑ limit 100k/s'")
    assert browser.text("#axis-y span") in ("12/s", "16/s", "20/s")
    assert browser.run("return document.querySelector('#chart .limit').getAttribute('d')") == ""


def test_a_job_that_failed_before_a_row_has_a_sentence_instead_of_an_empty_chart(
    browser: Browser, page: PageServer, server: ServiceServer
) -> None:
    failed = server.jobs.open(JobSpec("write", target="csv /a/b.csv"))
    server.jobs.enter(failed, Phase.FAILED)
    browser.open(page.link(change=False))
    browser.wait("document.querySelector('#phase').innerText == 'failed'")
    assert "Nothing to draw" in browser.text("#job")
    assert browser.run("return document.querySelector('#speed').hidden") is True


def test_the_end_of_a_source_or_target_is_its_table_and_its_address() -> None:
    assert [
        view_module._of_end(text)
        for text in (
            "postgresql postgresql://db:5432/shop#crm.orders",
            "sqlite /data/my shop.db#orders",
            "sqlite /data/marts.db#orders",
            "parquet s3://lake/flights",
            "csv /data/flights.csv",
            "kafka kafka://k:9092#topic",
            "generator",
            "",
        )
    ] == [
        ["shop.crm.orders", "PostgreSQL db:5432"],
        ["orders", "sqlite /data/my shop.db"],
        ["orders", "/data/marts.db"],
        ["flights", "parquet s3://lake"],
        ["flights.csv", "/data"],
        ["topic", "kafka kafka://k:9092"],
        ["generator", ""],
        ["", ""],
    ]


def test_the_tables_of_a_replication_are_shown_together(
    browser: Browser, page: PageServer, server: ServiceServer
) -> None:
    jobs = {
        table: server.jobs.open(
            JobSpec(
                "transfer",
                name=f"{table}-1",
                source=f"sqlite shop#{table}",
                target="csv out",
                part_of="replicate 1",
            )
        )
        for table in ("orders", "stock", "customers")
    }
    server.jobs.open(JobSpec("transfer", name="other", part_of="replicate 2"))
    server.jobs.enter(jobs["stock"], Phase.DONE)
    server.jobs.enter(jobs["customers"], Phase.FAILED, error="no such table")
    browser.open(page.link(change=False))
    browser.wait("document.querySelectorAll('#jobs button').length == 4")
    browser.run(
        "[...document.querySelectorAll('#jobs button')].find((each) => each.innerText.includes('orders')).click()"
    )
    title = "document.querySelector('#tables-title').innerText"
    browser.wait(f"{title} == 'Tables of this replication: 1 running, 1 done, 1 failed'")
    names = "[...document.querySelectorAll('#tables button')].map((each) => each.innerText)"
    assert browser.run(f"return {names}") == ["orders", "customers", "stock"]
    browser.run("document.querySelectorAll('#tables button')[1].focus()")
    browser.keys("\ue007")  # by keyboard: the table that failed, with its reason
    browser.wait("document.querySelector('#error').innerText == 'no such table'")


def test_the_page_of_another_program_finds_the_tables_of_a_replication(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript("CREATE TABLE a (id INTEGER); INSERT INTO a VALUES (1)")
    seen: list[dict[str, Any]] = []
    views = page_module._HostViews({})

    def look(engine: LocalEngine, spec: TransferSpec, more: Mapping[str, Any]) -> TransferReport:
        report = carry_out(engine, spec, more)
        seen.extend(job for view in views.all() for job in view.watch(None, 0.0)["jobs"])
        return report

    replication = {
        "source": {"url": f"sqlite:{tmp_path}/shop.db"},
        "target": {"url": f"sqlite:{tmp_path}/dw.db"},
        "streams": {"a": {}},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(local, "carry_out_here", look)
        report = spark_channel.replicate(None, replication)
    views.close()
    assert [job["part_of"] for job in seen] == [f"replicate {report.run_id}"]


class _Proxy(BaseHTTPRequestHandler):
    """Passes requests below a prefix on, as the proxies of Jupyter and of Databricks' driver do.

    Jupyter's keeps an answer until it is whole, unless the browser asks for a stream; `keeps_all`: that one, too.
    """

    protocol_version = "HTTP/1.1"
    prefix, port, keeps_all = "/user/me/proxy/7/", 0, False
    heads: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self._pass_on(None)

    def do_POST(self) -> None:
        self._pass_on(self.rfile.read(int(self.headers["Content-Length"])))

    def _pass_on(self, body: bytes | None) -> None:
        self.heads.append(f"{self.requestline} {self.headers.get('Referer', '')}")
        assert self.path.startswith(self.prefix), self.path
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in ("host", "connection")
            }
            path = "/" + self.path.removeprefix(self.prefix)
            connection.request(self.command, path, body, headers)
            answer = connection.getresponse()
            streams = self.headers.get("Accept") == "text/event-stream" and not self.keeps_all
            content = b"" if streams else answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name not in ("Transfer-Encoding", "Content-Length"):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            self.wfile.write(content)
            while streams and (part := answer.read1()):
                self.wfile.write(part)
        except OSError:  # the browser has left, or the page has ended
            self.close_connection = True
        finally:
            connection.close()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        pass


@pytest.mark.parametrize("keeps_all", [False, True])
def test_the_page_works_behind_a_proxy_with_a_path(
    one_browser: Browser,
    server: ServiceServer,
    monkeypatch: pytest.MonkeyPatch,
    keeps_all: bool,
) -> None:
    page = PageServer({server.address: server.view})
    monkeypatch.setattr(_Proxy, "keeps_all", keeps_all)
    monkeypatch.setattr(_Proxy, "heads", [])
    monkeypatch.setattr(_Proxy, "port", int(page.address.split(":")[2][:-1]))
    job = server.jobs.open(JobSpec("read", name="seen", rows_per_second=1000))
    with ThreadingHTTPServer(("127.0.0.1", 0), _Proxy) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            token = token_of(page.link(change=True))
            one_browser.open(f"http://127.0.0.1:{proxy.server_port}{_Proxy.prefix}#{token}")
            one_browser.wait("document.querySelector('#title').innerText == 'seen'", 15)
            server.jobs.report(job, "one", tasks(1, 7777))
            one_browser.wait(
                "document.querySelector('#figures dd').innerText.includes('7.78k')", 10
            )
            one_browser.click("#control button.second")
            one_browser.wait("document.querySelector('#phase').innerText == 'paused'", 5)
            assert one_browser.complaints() == []
            assert not any(token in head for head in _Proxy.heads)
        finally:
            one_browser.open("about:blank")
            page.stop()
            proxy.shutdown()
            thread.join(10)


def test_a_browser_too_many_is_told_why(
    browser: Browser, page: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "_MOST_VIEWERS", 0)
    browser.open(page.link(change=False))
    browser.wait(
        "document.querySelector('#connection').innerText.includes('close one, trying again')"
    )


def test_a_wrong_token_is_asked_for_again_and_the_link_may_be_pasted(
    browser: Browser, page: PageServer, server: ServiceServer
) -> None:
    server.jobs.open(JobSpec("read", name="seen"))
    browser.open(page.address + "#" + "x" * 43)
    browser.wait("!document.querySelector('#login').hidden && document.activeElement.id == 'token'")
    assert "not accepted" in browser.text("#login-why")
    browser.keys(page.link(change=False) + "\ue007")
    browser.wait("document.querySelector('#title').innerText == 'seen'")


def test_jobs_of_programs_that_have_ended_stay_for_a_while(
    server: ServiceServer, page: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = server.jobs.open(JobSpec("transfer", name="nightly", rows_per_second=1000))
    server.jobs.enter(job, Phase.DONE)
    server.stop()
    assert [(each["job"], each["name"], each["phase"]) for each in shown_jobs(page)] == [
        (job, "nightly", "done")
    ]
    keep_ended([{"job": str(number)} for number in range(MOST_KEPT)])
    kept = ended_jobs(ServiceDirectory())
    assert [each["job"] for each in kept] == [str(number) for number in range(MOST_KEPT)]
    for run in range(6):
        keep_ended([{"job": f"{run}-{number}", "error": "\xe9" * 1_000} for number in range(8)])
    names = [each["job"] for each in ended_jobs(ServiceDirectory())]
    assert names == [f"{run}-{number}" for run in range(6) for number in range(8)][-len(names) :]
    assert len(names) == 10, "what 64 KiB of JSON hold of the newest"
    monkeypatch.setattr(kept_jobs, "KEPT_SECONDS", -1)
    assert ended_jobs(ServiceDirectory()) == []


def shown_jobs(page: PageServer) -> list[dict[str, Any]]:
    """As a program asks for them."""
    asks = urllib.request.Request(f"{page.address}events?once=1")
    asks.add_header("Authorization", f"Bearer {token_of(page.link(change=False))}")
    with urllib.request.urlopen(asks, timeout=10) as answer:
        (state,) = re.findall(r"^event: state\ndata: (.*)$", answer.read().decode(), re.MULTILINE)
    found: list[dict[str, Any]] = json.loads(state)["jobs"]
    return found
