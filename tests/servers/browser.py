"""Debian's chromium without a window, driven by its own WebDriver."""

import base64
import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from tests.servers.ports import free_port

__all__ = ["Browser"]

_STARTS_WITHIN = 30.0
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--no-proxy-server",
)


class Browser:
    """One window, for a `with` block."""

    def __init__(self, directory: Path, size: tuple[int, int] = (1280, 900)) -> None:
        self._port = free_port()
        options = {
            "args": [
                *_ARGUMENTS,
                f"--window-size={size[0]},{size[1]}",
                f"--user-data-dir={directory}",
            ]
        }
        self._process = subprocess.Popen(
            ["chromedriver", f"--port={self._port}", "--allowed-ips=127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": str(directory), "PATH": "/usr/bin:/bin"},
        )
        self._session = ""
        try:
            self._wait_ready()
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def open(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a JavaScript function returns."""
        return self._call(
            "POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)}
        )

    def wait(self, expression: str, seconds: float = 10.0) -> Any:
        """The value of a JavaScript expression, once it is true."""
        end = time.monotonic() + seconds
        while True:
            if found := self.run(
                f"try {{ return {expression}; }} catch (error) {{ return null; }}"
            ):
                return found
            assert time.monotonic() < end, f"waited {seconds} s for {expression}:\n{self.text()}"
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def click(self, selector: str) -> None:
        self.run("document.querySelector(arguments[0]).click()", selector)

    def keys(self, text: str) -> None:
        """Press keys, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        body = {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        self._call("POST", f"{self._session}/actions", body)

    def emulate(self, command: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        body = {"cmd": command, "params": parameters}
        return self._call("POST", f"{self._session}/goog/cdp/execute", body)

    def complaints(self) -> list[str]:
        """What the page wrote to the console: errors, and violations of its security policy."""
        found = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{each['level']} {each['message']}" for each in found]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _wait_ready(self) -> None:
        end = time.monotonic() + _STARTS_WITHIN
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except OSError:
                assert time.monotonic() < end, f"chromedriver did not start in {_STARTS_WITHIN} s"
            time.sleep(0.02)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(error.read().decode("utf-8", "replace")[:2000]) from None
