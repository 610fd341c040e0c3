"""A console in this process, for the tested broker."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, build_opener

import pytest

from compat_tests.tools.console import chromium
from odradek.tools.console.console import Console
from odradek.tools.console.server import listen, make_console, make_server
from odradek.tools.console.settings import ConsoleSettings
from odradek.tools.kafka.connection.profile import Connection
from odradek.tools.kafka.connection.wire_client import Address, parse_addresses


class Page(NamedTuple):
    """A response."""

    status: int
    url: str
    text: str
    content: bytes

    @property
    def rows(self) -> list[list[str]]:
        """Return the texts in the cells of all rows of tables."""
        return [
            [
                " ".join(re.sub(r"<[^>]*>", " ", cell).split())
                for cell in re.findall(r"<t[hd][ >].*?</t[hd]>", row, re.S)
            ]
            for row in re.findall(r"<tr[ >].*?</tr>", self.text, re.S)
        ]

    def find_row(self, name: str) -> list[str]:
        """Return the first row that begins with a text."""
        found = [row for row in self.rows if row and row[0].startswith(name)]
        assert found, (name, self.rows)
        return found[0]


class ConsoleClient:
    """A client of a console.

    served: the console
    changes: the lines that it has reported
    """

    def __init__(self, url: str, served: Console, changes: list[str]) -> None:
        self.url = url
        self.served = served
        self.changes = changes
        self._opener = build_opener()

    def get(self, path: str, status: int = 200) -> Page:
        """Return a page."""
        return self._open(Request(self.url + path), status)

    def log_in(self, password: str, **headers: str) -> str:
        """Log in; return the header that sets the cookie."""
        data = urlencode({**self.find_token("/login"), "password": password}).encode()
        connection = HTTPConnection(self.url.removeprefix("http://"))
        fields = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/login", data, fields)
        with closing(connection):
            return connection.getresponse().headers.get("Set-Cookie", "")

    def submit(self, path: str, values: Mapping[str, str], action: str | None = None, status: int = 200) -> Page:
        """Submit a form of the page at `path`, with the token that it has."""
        data = urlencode({**self.find_token(path), **values}).encode()
        return self._open(Request(self.url + (action or path), data), status)

    def find_token(self, path: str) -> dict[str, str]:
        """Return the field of the token in the form of a page."""
        page = self.get(path)
        found = re.search(r'name="token" value="(\w+)"', page.text)
        assert found, page.text
        return {"token": found[1]}

    def _open(self, request: Request, status: int) -> Page:
        try:
            response: Any = self._opener.open(request)
        except HTTPError as error:
            response = error
        with response:
            content = response.read()
            page = Page(response.status, response.geturl(), content.decode("utf-8", "replace"), content)
        assert page.status == status, page.text
        return page


@pytest.fixture(scope="module")
def start_console() -> Iterator[Callable[..., ConsoleClient]]:
    """Start a console: start_console(bootstrap_servers, allows_changes=True)."""
    with ExitStack() as stack:

        def start(
            bootstrap_servers: str, properties: Mapping[str, str] | None = None, **settings: Any
        ) -> ConsoleClient:
            connection = Connection(parse_addresses(bootstrap_servers), properties or {})
            listening = stack.enter_context(listen(Address("127.0.0.1", 0)))
            changes: list[str] = []
            served = make_console(connection, ConsoleSettings(**settings), changes.append)
            server = make_server(served, listening)

            def serve() -> None:
                # The sockets are closed while the thread waits for them.
                with suppress(OSError):
                    server.run()

            threading.Thread(target=serve, daemon=True).start()
            stack.callback(server.close)
            return ConsoleClient(f"http://127.0.0.1:{listening.getsockname()[1]}", served, changes)

        yield start


@pytest.fixture(scope="module")
def console(broker: Any, start_console: Callable[..., ConsoleClient]) -> ConsoleClient:
    """A console that permits changes."""
    return start_console(broker.bootstrap_servers, allows_changes=True)


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Chromium]:
    """A browser."""
    if chromium.PROGRAM is None:
        pytest.skip("chromium is not installed")
    with chromium.Chromium() as started:
        yield started
