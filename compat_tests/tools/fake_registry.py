"""A schema registry for tests: Confluent's paths, with schemas in memory."""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from compat_tests.http_server import serving

USER_INFO = "me:secret"


class FakeRegistry:
    """Schemas with ids from 1, and the ids of the versions of subjects.

    serialized: the file descriptors of Protobuf schemas by their texts
    requests: methods and paths
    """

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.serialized: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.url = ""

    def add(self, subject: str, schema: Mapping[str, Any]) -> int:
        """Register a schema; return its id."""
        if schema not in self.schemas:
            self.schemas.append(dict(schema))
        schema_id = self.schemas.index(dict(schema)) + 1
        self.subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def respond(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Return the status and content of a response."""
        self.requests.append(f"{method} {path}")
        if headers.get("Authorization") != f"Basic {base64.b64encode(USER_INFO.encode()).decode()}":
            return self._refuse(401, "Unauthorized")
        path, _, query = path.partition("?")
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            return self._show(int(match[1]), query)
        if match := re.fullmatch(r"/subjects/([^/]+)/versions(?:/(latest|\d+))?", path):
            if method == "POST":
                return 200, json.dumps({"id": self.add(match[1], json.loads(body))}).encode()
            versions = self.subjects.get(match[1])
            if versions is None:
                return self._refuse(404, "Subject not found.")
            return self._show(versions[-1 if match[2] == "latest" else int(match[2]) - 1], query)
        if method == "POST" and (match := re.fullmatch(r"/subjects/([^/]+)", path)):
            schema = json.loads(body)
            if schema not in self.schemas or self.schemas.index(schema) + 1 not in self.subjects.get(match[1], ()):
                return self._refuse(404, "Schema not found")
            return self._show(self.schemas.index(schema) + 1, query)
        return self._refuse(404, "HTTP 404 Not Found")

    def _show(self, schema_id: int, query: str) -> tuple[int, bytes]:
        if not 0 < schema_id <= len(self.schemas):
            return self._refuse(404, "Schema not found")
        schema = self.schemas[schema_id - 1]
        if query == "format=serialized" and schema.get("schemaType") == "PROTOBUF":
            schema = {**schema, "schema": base64.b64encode(self.serialized[schema["schema"]]).decode()}
        return 200, json.dumps({"id": schema_id, **schema}).encode()

    def _refuse(self, status: int, message: str) -> tuple[int, bytes]:
        return status, json.dumps({"error_code": status, "message": message}).encode()


@contextmanager
def serving_registry() -> Iterator[FakeRegistry]:
    """Serve a registry; its URL has the user and the password."""
    registry = FakeRegistry()
    with serving(registry.respond) as url:
        registry.url = url.replace("://", f"://{USER_INFO}@")
        yield registry
