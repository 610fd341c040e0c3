"""A schema registry for tests: Confluent's REST paths over http.server, with schemas in memory."""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NO_SCHEMA = (404, 40403, "Schema not found")
NO_SUBJECT = (404, 40401, "Subject not found")


class FakeRegistry:
    """Schemas with ids from 1, and subjects with the ids of their versions.

    `asked` lists all requests; `fails` has the status codes of the next responses.
    """

    def __init__(self, user_info=None):
        self.schemas = []
        self.subjects = {}
        self.asked = []
        self.fails = []
        self.user_info = user_info
        self.url = ""

    def add(self, schema, subject="any", **more):
        """Register a schema, unless it is registered already, and return its id."""
        entry = {"schema": schema, **more}
        if entry not in self.schemas:
            self.schemas.append(entry)
        schema_id = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def answer(self, method, path, body, authorization):
        self.asked.append((method, path))
        if self.user_info is not None:
            wanted = f"Basic {base64.b64encode(self.user_info.encode()).decode()}"
            if authorization != wanted:
                return 401, {"error_code": 40101, "message": "Unauthorized"}
        if self.fails:
            status = self.fails.pop(0)
            return status, {"error_code": status * 100 + 1, "message": "not now"}
        if found := re.fullmatch(r"/schemas/ids/(\d+)(\?.*)?", path):
            at = int(found[1]) - 1
            return (200, self.schemas[at]) if 0 <= at < len(self.schemas) else refused(*NO_SCHEMA)
        if found := re.fullmatch(r"/subjects/([^/?]+)(/versions(/latest)?)?(\?.*)?", path):
            return self._of_subject(method, found[1], found[2], body)
        return refused(404, 404, "HTTP 404 Not Found")

    def _of_subject(self, method, subject, rest, body):
        versions = self.subjects.get(subject)
        if method == "POST" and rest == "/versions":
            return 200, {"id": self.add(body["schema"], subject)}
        if versions is None:
            return refused(*NO_SUBJECT)
        if method == "GET" and rest == "/versions/latest":
            return 200, self._version(subject, versions[-1])
        if method == "POST" and rest is None:
            ids = [one for one in versions if self.schemas[one - 1]["schema"] == body["schema"]]
            return (200, self._version(subject, ids[0])) if ids else refused(*NO_SCHEMA)
        return refused(405, 405, "HTTP 405 Method Not Allowed")

    def _version(self, subject, schema_id):
        version = self.subjects[subject].index(schema_id) + 1
        return {"subject": subject, "version": version, "id": schema_id, **self.schemas[schema_id - 1]}


def refused(status, code, message):
    return status, {"error_code": code, "message": message}


@contextmanager
def serving(user_info=None) -> Iterator[FakeRegistry]:
    """A registry on a free port while the block runs."""
    registry = FakeRegistry(user_info)

    class Handler(BaseHTTPRequestHandler):
        def respond(self):
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, answer = registry.answer(self.command, self.path, body, self.headers.get("Authorization"))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = respond  # noqa: N815

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
