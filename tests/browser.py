"""A headless Chromium, driven through its debugging pipe; that needs no library."""

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
REQUIRED = "PARITY_REQUIRE_BROWSER"
HOW_TO_GET = "no Chromium: `apt-get install chromium` and the tests of the HTML page run too"


def program() -> str | None:
    """Return the browser's path; None if there is none on the PATH."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page.

    Args:
      folder: for its profile.

    Attributes:
      complaints: what the page wrote to its console as warning or error, and what it threw.
      requests: addresses it asked for.
      shown: the page that it has open.
    """

    def __init__(self, folder: Path):
        path = program()
        assert path is not None, f"{REQUIRED} is set, and there is {HOW_TO_GET}"
        here_in, there_out = os.pipe()
        there_in, here_out = os.pipe()
        # The browser expects the pipe's ends as 3 and 4, numbers that may be taken here.
        self._process = subprocess.Popen(
            [
                *("bash", "-c", f'exec "$@" 3<&{there_in} 4>&{there_out}', "bash", path),
                "--headless",
                "--no-sandbox",  # a container's root may not use it
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={folder}",
                "about:blank",
            ],
            pass_fds=(there_in, there_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there_in)
        os.close(there_out)
        self._in, self._out, self._rest, self._count = here_in, here_out, b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.shown: Path | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = (each for each in targets if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)
        os.close(self._out)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the DevTools protocol, and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript, or what it promises."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def look(self, width: int = 1100, height: int = 900, scheme: str = "light") -> None:
        """Set the window's size in pixels and the colours that the user prefers."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def open(self, page: Path) -> None:
        """Open a page, and wait until it is ready."""
        self.complaints.clear()
        self.requests.clear()
        self.shown = page
        self.call("Page.navigate", url=page.as_uri())
        here = f"location.href === {json.dumps(page.as_uri())}"
        self.wait_for(f"{here} && document.readyState === 'complete'")

    def wait_for(self, condition: str, seconds: float = 30) -> None:
        """Wait until an expression of JavaScript is true."""
        last = time.monotonic() + seconds
        while not self.evaluate(condition):
            assert time.monotonic() < last, f"waited in vain: {condition}; {self.complaints}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key, on whatever has the focus."""
        code = {"Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[
            key
        ]
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
            )

    def picture(self) -> bytes:
        """Return what the window shows as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            readable, _, _ = select.select([self._in], [], [], 60)
            assert readable, "the browser has said nothing for a minute"
            part = os.read(self._in, 1 << 20)
            assert part, f"the browser ended with status {self._process.wait(20)}"
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        event = json.loads(message)
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(parameters["args"]))
        elif event.get("method") == "Log.entryAdded":
            if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(parameters["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        return event


def lines(window, plot):
    """Return name -> the points of each line that a chart draws: (x, height), 0 to 1000."""
    found = window.evaluate(
        f"[...document.querySelectorAll('#{plot} .plot g[data-name]')].map((line) =>"
        " [line.dataset.name, line.children[1].getAttribute('d')])"
    )
    return {
        name: [(int(x), 1000 - int(y)) for x, y in re.findall(r"[ML](\d+) (\d+)", path)]
        for name, path in found
    }


def cells(window, selector):
    """Return the texts of a table's cells."""
    return window.evaluate(
        f"[...document.querySelector({selector!r}).querySelectorAll('tbody tr')].map((row) =>"
        " [...row.cells].map((cell) => cell.textContent))"
    )
