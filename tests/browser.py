"""A headless Chromium that tests steer over two pipes, by the protocol of its developer tools."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_SECONDS = 120
"""Of a machine that is busy with other tests."""


def find_browser() -> str | None:
    """Return the program of a browser of Chromium's family; None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page; every message of the page's console is kept in `said`."""

    def __init__(self, program: str) -> None:
        self._home = tempfile.TemporaryDirectory()
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # The browser reads commands from 3 and answers on 4, each ended by a zero byte.
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                   "--remote-debugging-pipe", f"--user-data-dir={self._home.name}", "--no-first-run", "about:blank"]
        self._process = subprocess.Popen(["bash", "-c", shell, "browser", *command], pass_fds=(to_read, to_write),
                                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        self._number, self._buffer, self._session = 0, b"", ""
        self.said: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Runtime", "Page", "Log"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; raise RuntimeError where the browser refuses it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise RuntimeError("the browser has ended" if ready else "the browser does not answer")
            self._buffer += piece
        first, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(first)
        self._keep(message)
        return message

    def _keep(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.said.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.said.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded":
            self.said.append(told["entry"]["text"])

    def open(self, path: Path, width: int = 1200, height: int = 900, *, mobile: bool = False) -> None:
        """Show a file in a window of this size, and wait until it is loaded."""
        self.size(width, height, mobile=mobile)
        self.said.clear()
        self.call("Page.navigate", url=path.absolute().as_uri())
        end = time.monotonic() + PATIENCE_SECONDS
        while self.ask("document.readyState + location.protocol") != "completefile:" and time.monotonic() < end:
            time.sleep(0.05)

    def size(self, width: int, height: int, *, mobile: bool = False) -> None:
        """Give the window another size."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def ask(self, script: str) -> Any:
        """Return the value of an expression in the page; raise RuntimeError where it throws."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """Click into the middle of an element with the mouse, as a person would."""
        x, y = self.ask(f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center"}}); const r = e.getBoundingClientRect();
            return [r.x + r.width / 2, r.y + r.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def mouse(self, kind: str, x: float, y: float, **further: Any) -> None:
        """Move, press, release or turn the wheel at a place."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **further)

    def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, text=name if len(name) == 1 else "",
                      windowsVirtualKeyCode=27 if name == "Escape" else 0)

    def write(self, text: str) -> None:
        """Type a text into what has the focus."""
        self.call("Input.insertText", text=text)

    def picture(self) -> bytes:
        """Return what the window shows, as PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def printed(self) -> bytes:
        """Return the page as it is printed on A4, as PDF."""
        pdf = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        return base64.b64decode(pdf["data"])

    def close(self) -> None:
        """End the browser."""
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home.name, ignore_errors=True)
