"""A JVM that runs Kafka's tools one after another, because most of a tool's time is the start of its JVM.

The tools are Kafka's own classes, with their arguments, input, output and exit code. A tool that needs another
environment, directory or JVM, or that is run while another one runs, has a process of its own.
"""

import atexit
import contextlib
import os
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from compat_tests import processes
from compat_tests.apache_kafka.jars import java, kafka_classpath
from compat_tests.apache_kafka.programs import compile_program

SOURCE: Final = Path(__file__).with_name("ToolServer.java")

Result = tuple[int, str, str]
"""Exit code, output and errors."""

_UNRELATED: Final = ("PYTEST_CURRENT_TEST",)
_USES_OF_A_JVM: Final = 200
"""Tools after which a JVM is replaced, because threads and metrics of earlier tools may remain."""


class ToolTimeoutError(Exception):
    """A tool did not end in time; its JVM was killed."""


def _find_environment() -> tuple[dict[str, str], str]:
    return {name: value for name, value in os.environ.items() if name not in _UNRELATED}, os.getcwd()


class _Jvm:
    """A running server, and the environment and directory that it has."""

    def __init__(self, options: Sequence[str]) -> None:
        self.environment = _find_environment()
        self.uses = 0
        classpath = os.pathsep.join([kafka_classpath(), compile_program(SOURCE, "tool-server")])
        self.process = processes.start(
            [java(), *options, "-cp", classpath, "ToolServer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )

    def is_usable(self) -> bool:
        is_running = self.process.poll() is None
        return is_running and self.uses < _USES_OF_A_JVM and self.environment == _find_environment()

    def run(self, tool: str, arguments: Iterable[str], stdin: str, timeout_s: float) -> Result:
        self.uses += 1
        given = [one.encode() for one in arguments]
        parts = [stdin.encode(), tool.encode()]
        request = b"".join(struct.pack(">i", len(part)) + part for part in parts)
        request += struct.pack(">i", len(given)) + b"".join(struct.pack(">i", len(one)) + one for one in given)
        assert self.process.stdin is not None
        self.process.stdin.write(request)
        end_s = time.monotonic() + timeout_s
        (code,) = struct.unpack(">i", self._read(4, end_s))
        output, errors = (self._read_part(end_s).decode(errors="replace") for _ in range(2))
        return code, output, errors

    def _read_part(self, end_s: float) -> bytes:
        (size,) = struct.unpack(">i", self._read(4, end_s))
        return self._read(size, end_s)

    def _read(self, size: int, end_s: float) -> bytes:
        assert self.process.stdout is not None
        found = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while len(found) < size:
                if not selector.select(max(0.0, end_s - time.monotonic())):
                    raise ToolTimeoutError
                chunk = os.read(self.process.stdout.fileno(), size - len(found))
                if not chunk:
                    raise ToolTimeoutError
                found += chunk
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class ToolServer:
    """Runs tools in a JVM that is started for the first one. `options`: returns the options of the JVM."""

    def __init__(self, options: Callable[[], Sequence[str]]) -> None:
        self._options = options
        self._jvm: _Jvm | None = None
        self._lock = threading.Lock()
        atexit.register(self._close)

    def run(self, tool: str, arguments: Iterable[str], stdin: str, timeout_s: float) -> Result | None:
        """Run a tool; return None if it needs a process of its own. Raises ToolTimeoutError."""
        # A process ends with the thread that has started it.
        if threading.current_thread() is not threading.main_thread() or not self._lock.acquire(blocking=False):
            return None
        try:
            jvm = self._find_jvm()
            try:
                return jvm.run(tool, arguments, stdin, timeout_s)
            except BaseException:
                # The next response might be that of this tool. Also after an interrupt by the user.
                self._close()
                raise
        finally:
            self._lock.release()

    def _find_jvm(self) -> _Jvm:
        if self._jvm is not None and not self._jvm.is_usable():
            self._close()
        if self._jvm is None:
            self._jvm = _Jvm(self._options())
        return self._jvm

    def _close(self) -> None:
        jvm, self._jvm = self._jvm, None
        if jvm is not None:
            with contextlib.suppress(OSError):
                jvm.close()
