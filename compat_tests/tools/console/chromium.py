"""Headless Chromium, driven through the DevTools protocol over pipes."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import Any, Self

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")

_COMMANDS_FD, _EVENTS_FD = 3, 4
_SHIFT = 8
_KEY_CODES = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "ArrowUp": 38, "ArrowDown": 40, "End": 35, "Home": 36}


class ScriptError(Exception):
    """A script in a page raised an exception."""


class Chromium:
    """A browser with one page; a context manager.

    messages: errors in the console since a page was opened, such as violations of its Content-Security-Policy
    """

    def __init__(self) -> None:
        self.messages: list[str] = []
        self._last_id = 0
        self._session: str | None = None

    def __enter__(self) -> Self:
        self._directory = tempfile.mkdtemp(prefix="odradek-chromium-")
        child_in, self._write_fd = os.pipe()
        self._read_fd, child_out = os.pipe()

        def arrange() -> None:
            # Copies at higher numbers first, because the pipes may already be 3 or 4.
            source, target = os.dup(child_in), os.dup(child_out)
            os.dup2(source, _COMMANDS_FD)
            os.dup2(target, _EVENTS_FD)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        self._process = subprocess.Popen(
            [str(PROGRAM), *flags, "--remote-debugging-pipe", f"--user-data-dir={self._directory}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=arrange,
        )
        os.close(child_in)
        os.close(child_out)
        self._reader = os.fdopen(self._read_fd, "rb")
        self._buffer = b""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Security"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write_fd)
        self._reader.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def send(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            received = self._receive()
            if received.get("id") == self._last_id:
                assert "error" not in received, received
                return received["result"]

    def open(self, url: str) -> None:
        """Load a page."""
        self._loaded = False
        self.messages.clear()
        failure = self.send("Page.navigate", url=url).get("errorText")
        assert failure is None, failure
        self.wait_for_load()

    def wait_for_load(self) -> None:
        """Wait until a page that was requested is loaded."""
        while not self._loaded:
            self._receive()
        self._loaded = False

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of the promise that it returns."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise ScriptError(result["exceptionDetails"])
        return result["result"].get("value")

    def submit(self, script: str) -> None:
        """Run a script that leads to another page, and wait until it is loaded."""
        self._loaded = False
        self.run(script)
        self.wait_for_load()

    def resize(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Set the size of the window and the preferred colours."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        # Focus is checked at the places that elements have after scrolling.
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.send("Emulation.setEmulatedMedia", features=[scheme, motion])

    def press(self, key: str, *, is_shifted: bool = False) -> None:
        """Press and release a key, such as Tab, Enter, Escape, ArrowDown or a character."""
        code = _KEY_CODES.get(key, 0)
        text = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else "")
        name = " " if key == "Space" else key
        keys = {"key": name, "code": key, "windowsVirtualKeyCode": code, "modifiers": _SHIFT if is_shifted else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **keys)
        self.send("Input.dispatchKeyEvent", type="keyUp", **keys)

    def press_to_load(self, key: str) -> None:
        """Press a key that leads to another page, and wait until it is loaded."""
        self._loaded = False
        self.press(key)
        self.wait_for_load()

    def write(self, text: str) -> None:
        """Replace the text of the field that has the focus."""
        self.run("document.activeElement.select()")
        self.send("Input.insertText", text=text)

    def take_screenshot(self, *, is_whole: bool = False) -> bytes:
        """Return the visible part of the page, or all of it, as PNG."""
        options = {"format": "png", "captureBeyondViewport": is_whole}
        if is_whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        return base64.b64decode(self.send("Page.captureScreenshot", **options)["data"])

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            data = os.read(self._reader.fileno(), 1 << 16)
            assert data, "the browser exited"
            self._buffer += data
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(raw)
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Log.entryAdded" if message["params"]["entry"]["level"] == "error":
                self.messages.append(message["params"]["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(message["params"]))
        return message
