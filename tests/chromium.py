"""A real Chromium, driven over the pipe of its DevTools protocol with nothing but the standard library."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
PATIENCE = 60.0
"""Seconds for any one answer; the machine may be busy."""
KEYS = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Enter": 13, "Tab": 9, " ": 32}


def chromium() -> str | None:
    """The browser of this machine, if it has one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """A tab: what it shows, what it asked of the network, and what it complained of."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self.browser, self.session = browser, session
        self.asked: list[str] = []
        self.complaints: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is waited for."""
        got = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def wait(self, script: str) -> Any:
        """Until the expression is true; its value."""
        end = time.monotonic() + PATIENCE
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"never true: {script}"
            time.sleep(0.05)
        return value

    def click(self, selector: str, at: int = 0) -> None:
        """Click the middle of an element with a real mouse event."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{at}];"
            " e.scrollIntoView({block: 'center', behavior: 'instant'}); const b = e.getBoundingClientRect();"
            " return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Press keys as a person would."""
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            said = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
            self.call("Input.dispatchKeyEvent", type="keyDown", **said, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **said)

    def screenshot(self, path: Path) -> Path:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
        return path

    def heard(self, event: dict[str, Any]) -> None:
        """Keep what a page should never do."""
        said = event["params"]
        match event["method"]:
            case "Network.requestWillBeSent":
                self.asked.append(said["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(said["exceptionDetails"]))
            case "Log.entryAdded" if said["entry"]["level"] in ("error", "warning"):
                self.complaints.append(said["entry"]["text"])


class Browser:
    """A headless Chromium that ends with the block that opened it."""

    def __init__(self, reader: int, writer: int) -> None:
        self.reader, self.writer = reader, writer
        self.number, self.rest = 0, b""
        self.pages: dict[str, Page] = {}

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        whose = {"sessionId": session} if session else {}
        asked = {"id": self.number, "method": method, "params": parameters, **whose}
        os.write(self.writer, json.dumps(asked).encode() + b"\0")
        for answer in self._answers():
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            if (page := self.pages.get(answer.get("sessionId", ""))) is not None:
                page.heard(answer)
        raise AssertionError("the browser has gone")

    def _answers(self) -> Iterator[dict[str, Any]]:
        while True:
            while b"\0" in self.rest:
                one, self.rest = self.rest.split(b"\0", 1)
                yield json.loads(one)
            more = os.read(self.reader, 2**20)
            if not more:
                return
            self.rest += more

    def open(self, path: Path, width: int = 1200, height: int = 1600, dark: bool = False) -> Page:
        """Open a file in a tab of its own, without a network, and wait until it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **size)
        page.call("Page.navigate", url=path.resolve().as_uri())
        page.wait("document.readyState === 'complete' && location.protocol === 'file:'")
        return page


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """Start a browser with a fresh profile in a folder."""
    ours, theirs = os.pipe(), os.pipe()
    program = chromium()
    assert program is not None
    words = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    # Chromium reads commands from descriptor 3 and answers on 4.
    line = f'exec "$0" "$@" 3<&{ours[0]} 4>&{theirs[1]}'
    process = subprocess.Popen(
        ["bash", "-c", line, *words],  # not sh: dash knows descriptors of one digit only
        pass_fds=(ours[0], theirs[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(ours[0])
    os.close(theirs[1])
    browser = Browser(theirs[0], ours[1])
    try:
        yield browser
    finally:
        if process.poll() is None:
            try:
                browser.call("Browser.close")
                process.wait(20)
            except (AssertionError, OSError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
        os.close(theirs[0])
        os.close(ours[1])
