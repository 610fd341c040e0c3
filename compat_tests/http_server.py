"""A server of HTTP in a thread of the test."""

import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Respond = Callable[[str, str, Mapping[str, str], bytes], tuple[int, bytes]]
"""Returns status and content, given the method, the path, the headers and the content of a request."""


@contextmanager
def serving(respond: Respond) -> Iterator[str]:
    """Serve requests on a free port; the value is the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond()

        def do_POST(self) -> None:
            self.respond()

        def respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, data = respond(self.command, self.path, self.headers, body)  # type: ignore[arg-type]  # it has the methods
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
