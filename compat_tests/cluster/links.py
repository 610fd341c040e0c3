"""Links between the processes of a cluster, which can be cut: TCP proxies in front of the servers."""

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

from compat_tests import processes
from compat_tests.cluster.proxies import Link

END_S = 30


class Links:
    """Proxies of servers. Each connection belongs to the link between the process that opened it and the server.

    The connections of a link that is cut stay open, and pass nothing: neither data nor their end. All that was sent
    meanwhile arrives after the link is restored, as TCP repeats packets that a network has lost.

    marks: texts in the command lines of the processes that have a name, by name
    """

    def __init__(self, marks: Mapping[str, str]) -> None:
        self._marks = marks
        self._process: subprocess.Popen[str] | None = None

    def add(self, server: str, port: int) -> int:
        """Start the proxy of a server; return the proxy's port."""
        return int(self._request({"add": [server, port]}))

    def cut(self, links: Collection[Link]) -> None:
        """Cut links, which may be cut already."""
        self._request({"cut": list(links)})

    def restore(self, links: Collection[Link]) -> None:
        """Restore links."""
        self._request({"restore": list(links)})

    def _request(self, command: Mapping[str, Any]) -> Any:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(f"{json.dumps(command)}\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    def __enter__(self) -> Self:
        self._process = processes.start(
            [sys.executable, "-m", "compat_tests.cluster.proxies"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(dict(self._marks))}\n")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate(timeout=END_S)
