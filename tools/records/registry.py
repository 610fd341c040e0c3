"""Client of a schema registry with Confluent's REST API, and the header of its records: a zero byte, 4 bytes of id.

Sources: docs.confluent.io, "Schema Registry API Reference" and "Wire format".
"""

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from odradek.tools.kafka.connection.profile import SCHEMA_REGISTRY_URL
from odradek.tools.records.errors import InvalidOptionError, RegistryError, UndecodableError

HEADER_BYTES: Final = 5
_NOT_FOUND: Final = 404
_CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S: Final = 10.0
_USER_INFO: Final = ("schema.registry.basic.auth.user.info", "basic.auth.user.info")
_CA_FILE: Final = "schema.registry.ssl.truststore.location"


class RegisteredSchema(NamedTuple):
    """A schema with those to which it refers, dependencies first.

    kind: AVRO, JSON or PROTOBUF
    text: for Protobuf a file descriptor in base64
    references: names and texts
    """

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


def add_schema_id(schema_id: int, data: bytes) -> bytes:
    """Return data with the header of its schema's id."""
    return b"\0" + schema_id.to_bytes(4, "big") + data


def split_schema_id(data: bytes) -> tuple[int, bytes]:
    """Return the id in the header of a record, and the rest. Raises UndecodableError."""
    if len(data) < HEADER_BYTES or data[0]:
        raise UndecodableError("it does not begin with a zero byte and the id of a schema")
    return int.from_bytes(data[1:HEADER_BYTES], "big"), data[HEADER_BYTES:]


class Registry:
    """A client of one registry, which has one or several addresses. Its methods raise RegistryError."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Read the properties of a profile. Raises InvalidOptionError."""
        self._headers = {"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE}
        self._urls = []
        user_info = next((properties[name] for name in _USER_INFO if properties.get(name)), None)
        for one in filter(None, map(str.strip, properties.get(SCHEMA_REGISTRY_URL, "").split(","))):
            parts = urllib.parse.urlsplit(one)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InvalidOptionError(f"{SCHEMA_REGISTRY_URL} {one}: this is no http or https URL")
            in_url, at, host = parts.netloc.rpartition("@")
            user_info = user_info or (urllib.parse.unquote(in_url) if at else None)
            self._urls.append(parts._replace(netloc=host).geturl().rstrip("/"))
        if not self._urls:
            hint = "set schema.registry.url in a profile or give --registry"
            raise InvalidOptionError(f"the format registry needs the address of a schema registry: {hint}")
        if user_info is not None:
            self._headers["Authorization"] = f"Basic {base64.b64encode(user_info.encode()).decode()}"
        self._tls = _make_tls_context(properties.get(_CA_FILE))

    def fetch(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id; None if there is none."""
        try:
            found = self._request("GET", f"/schemas/ids/{schema_id}")
        except RegistryError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return self._complete(schema_id, found)

    def fetch_latest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest schema of a subject; None if the subject does not exist."""
        try:
            found = self._request("GET", f"/subjects/{_quote(subject)}/versions/latest")
        except RegistryError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return self._complete(int(found["id"]), found)

    def find(self, subject: str, kind: str, text: str) -> RegisteredSchema | None:
        """Return a schema in a subject; None if it is not registered there."""
        try:
            found = self._request("POST", f"/subjects/{_quote(subject)}", _make_body(kind, text))
        except RegistryError as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        return self._complete(int(found["id"]), found)

    def register(self, subject: str, kind: str, text: str) -> RegisteredSchema:
        """Return a schema in a subject; register it if it is missing."""
        path = f"/subjects/{_quote(subject)}/versions"
        schema_id = int(self._request("POST", path, _make_body(kind, text))["id"])
        found = self.fetch(schema_id)
        if found is None:
            raise RegistryError(f"schema registry {self._urls[0]} has no schema {schema_id}, which it has registered")
        return found

    def _complete(self, schema_id: int, found: dict[str, Any]) -> RegisteredSchema:
        kind = str(found.get("schemaType", "AVRO"))
        texts: dict[str, str] = {}
        self._add_references(kind, found, texts)
        if kind == "PROTOBUF":
            found = self._request("GET", f"/schemas/ids/{schema_id}?format=serialized")
        return RegisteredSchema(schema_id, kind, str(found["schema"]), tuple(texts.items()))

    def _add_references(self, kind: str, found: dict[str, Any], texts: dict[str, str]) -> None:
        for one in found.get("references") or ():
            if one["name"] in texts:
                continue
            path = f"/subjects/{_quote(one['subject'])}/versions/{one['version']}"
            referenced = self._request("GET", path)
            self._add_references(kind, referenced, texts)
            if kind == "PROTOBUF":
                referenced = self._request("GET", f"{path}?format=serialized")
            texts[one["name"]] = str(referenced["schema"])

    def _request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        failure = RegistryError("")
        for url in self._urls:
            try:
                return self._request_once(method, f"{url}{path}", body)
            except RegistryError as error:
                if error.status < 500:
                    raise
                failure = error
            except (OSError, ValueError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                reason = (isinstance(cause, OSError) and cause.strerror) or cause
                failure = RegistryError(f"schema registry {url} does not answer: {reason}")
        raise failure

    def _request_once(self, method: str, url: str, body: object) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=self._tls) as response:
                found = json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise RegistryError(f"schema registry {url}: {_read_message(error)}", error.code) from None
        if not isinstance(found, dict):
            raise ValueError("the response is not a JSON object")
        return found


def _make_tls_context(file: str | None) -> ssl.SSLContext | None:
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise InvalidOptionError(f"{_CA_FILE} {file}: {error.strerror or 'this is no PEM file'}") from None


def _make_body(kind: str, text: str) -> dict[str, str]:
    return {"schema": text, **({} if kind == "AVRO" else {"schemaType": kind})}


def _quote(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _read_message(error: urllib.error.HTTPError) -> str:
    text = error.read(10_000).decode("utf-8", "replace")
    try:
        return f"{error.code} {json.loads(text)['message']}"
    except (ValueError, TypeError, KeyError):
        return f"{error.code} {error.reason}"
