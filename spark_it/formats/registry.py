"""Client of a schema registry with Confluent's REST API, and its wire format: a zero byte, 4 bytes of id, the record.

Source: docs.confluent.io, "Schema Registry API Reference" and "Wire format".
"""

import base64
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from odradek.spark_it.formats.columns import UnavailableError

MAGIC = 0
HEADER_BYTES = 5
NOT_FOUND = 404
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S = 10.0
_TRIES = 5
_FIRST_WAIT_S = 0.2
_UNKNOWN_FOR_S = 30.0
_MAX_UNKNOWN = 10_000


class RegistryError(Exception):
    """The registry rejected a request; `status` is the HTTP status. `str()` has the address and the message."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class RegistryAddress(NamedTuple):
    """The URLs of a registry, separated by commas, and optionally `user:password`."""

    url: str
    user_info: str | None = None

    @classmethod
    def parse(cls, url: str, user_info: str | None) -> "RegistryAddress":
        """Parse an address whose URLs may contain `user:password@`, as in Confluent's clients."""
        user_infos: list[str] = []
        urls = []
        for one in url.split(","):
            scheme, _, rest = one.strip().rpartition("://")
            host, slash, path = rest.partition("/")
            in_url, _, host = host.rpartition("@")
            user_infos += [urllib.parse.unquote(in_url)] if in_url else []
            urls.append(f"{scheme}://{host}{slash}{path}")
        return cls(",".join(urls), user_info or next(iter(user_infos), None))

    def __repr__(self) -> str:
        return f"RegistryAddress({self.url})"


class RegisteredSchema(NamedTuple):
    """A schema in a registry, as JSON."""

    id: int
    schema: str


def add_schema_id(schema_id: int, record: bytes) -> bytes:
    """Return a record prefixed with its schema's id."""
    return MAGIC.to_bytes(1, "big") + schema_id.to_bytes(4, "big") + record


def split_schema_id(data: bytes) -> tuple[int, bytes]:
    """Return the schema id of a record, and the record without it. Raises ValueError."""
    if len(data) < HEADER_BYTES:
        raise ValueError(f"{len(data)} bytes are too few for a record with the id of its schema")
    if data[0] != MAGIC:
        raise ValueError(f"the first byte is {data[0]} and not 0: the record has no schema id")
    return int.from_bytes(data[1:HEADER_BYTES], "big"), data[HEADER_BYTES:]


class Registry:
    """A client with a cache of schemas by id; a schema never changes. Each method raises RegistryError if the registry
    rejects the request, and UnavailableError if it does not respond."""

    def __init__(
        self,
        address: RegistryAddress,
        wait: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._urls = [url.strip().rstrip("/") for url in address.url.split(",") if url.strip()]
        self._headers = {"Accept": f"{_CONTENT_TYPE}, application/json", "Content-Type": _CONTENT_TYPE}
        if address.user_info is not None:
            token = base64.b64encode(address.user_info.encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        self._wait, self._now = wait, now
        self._schemas: dict[int, str] = {}
        self._unknown_until: dict[int, float] = {}

    def schema(self, schema_id: int) -> str | None:
        """Return the Avro schema of an id; None if the registry has none. None is cached for 30 seconds."""
        found = self._schemas.get(schema_id)
        if found is not None:
            return found
        if self._unknown_until.get(schema_id, 0.0) > self._now():
            return None
        try:
            response = self._request("GET", f"/schemas/ids/{schema_id}")
        except RegistryError as error:
            if error.status != NOT_FOUND:
                raise
            if len(self._unknown_until) >= _MAX_UNKNOWN:
                self._unknown_until.clear()
            self._unknown_until[schema_id] = self._now() + _UNKNOWN_FOR_S
            return None
        return self._schemas.setdefault(schema_id, self._read_avro_schema(response, f"schema {schema_id}"))

    def fetch_latest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest schema of a subject; None if the subject does not exist."""
        try:
            response = self._request("GET", f"/subjects/{_quote_subject(subject)}/versions/latest")
        except RegistryError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return RegisteredSchema(int(response["id"]), self._read_avro_schema(response, f"subject {subject}"))

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema in a subject; register it if it is missing."""
        return int(self._request("POST", f"/subjects/{_quote_subject(subject)}/versions", {"schema": schema})["id"])

    def _read_avro_schema(self, response: dict[str, Any], what: str) -> str:
        kind = response.get("schemaType", "AVRO")
        if kind != "AVRO":
            raise RegistryError(f"{what} is {kind} and not AVRO", 200)
        if response.get("references"):
            raise RegistryError(f"{what} refers to other subjects, which is not supported", 200)
        return str(response["schema"])

    def _request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        wait_s, reason = _FIRST_WAIT_S, ""
        for left in reversed(range(_TRIES)):
            for url in self._urls:
                try:
                    return self._request_once(method, f"{url}{path}", body)
                except RegistryError as error:
                    if error.status < 500 and error.status not in (408, 429):
                        raise
                    reason = str(error)
                except (OSError, ValueError, http.client.HTTPException) as error:
                    cause = error.reason if isinstance(error, urllib.error.URLError) else error
                    reason = f"schema registry {url}: {cause}"
            if left:
                self._wait(wait_s)
                wait_s *= 2
        raise UnavailableError(reason)

    def _request_once(self, method: str, url: str, body: object) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as http_response:
                read = json.loads(http_response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise RegistryError(f"schema registry {url}: {_read_error_message(error)}", error.code) from None
        if not isinstance(read, dict):
            raise ValueError(f"the response of {url} is not a JSON object")
        return read


def _quote_subject(subject: str) -> str:
    return urllib.parse.quote(subject, safe="")


def _read_error_message(error: urllib.error.HTTPError) -> str:
    text = error.read(10_000).decode("utf-8", "replace")
    try:
        return f"{error.code} {json.loads(text)['message']}"
    except (ValueError, TypeError, KeyError):
        return f"{error.code} {error.reason}"


@lru_cache(maxsize=16)
def get_registry(address: RegistryAddress) -> Registry:
    """Return the process-wide client for an address, so that each schema is requested once."""
    return Registry(address)
