"""A cluster as an administrator's client uses it: requests to any broker, the controller, leaders and coordinators.

Connections are made when they are needed. A request that another broker must serve (NOT_CONTROLLER and the like) is
sent again there, until `retry_s` seconds have passed.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from odradek.protocol.schema import Message, Struct
from odradek.tools.kafka.connection.connection_errors import NoAddressError, NoResponseError
from odradek.tools.kafka.connection.profile import Connection, make_security
from odradek.tools.kafka.connection.wire_client import Address, ClientSecurity, WireClient
from odradek.tools.kafka.problems import report_problem
from odradek.tools.kafka.similar_names import find_similar, format_suggestion

RETRY_S: Final = 30.0
_PAUSE_S: Final = 0.1

_NO_CONTROLLER: Final = frozenset({ErrorCode.NOT_CONTROLLER})
_NO_COORDINATOR: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)

_COORDINATOR_TOPICS: Final[Mapping[int, tuple[str, str]]] = {
    0: ("__consumer_offsets", "offsets.topic.replication.factor"),
    1: ("__transaction_state", "transaction.state.log.replication.factor"),
}
"""The topics of coordinators by key type, and the properties that determine the number of their replicas."""

Response = TypeVar("Response", bound=Message)


class RequestError(Exception):
    """The cluster refused a request, or a part of it. The message is one line.

    code: Kafka's name of the error
    similar: the nearest names of one that does not exist
    """

    def __init__(self, code: str, message: str, similar: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.similar = similar


def unknown_name(code: str, message: str, name: str, names: Iterable[str]) -> RequestError:
    """Return the error of a name that does not exist, with the nearest of those that do."""
    similar = find_similar(name, names)
    return RequestError(code, f"{message}{format_suggestion(similar)}", similar)


def make_error(code: int, message: str | None, subject: str = "") -> RequestError:
    """Return the error of a response: its name, and its message if there is one."""
    name = name_error(code)
    text = " ".join((message or "").split())
    return RequestError(name, f"{subject}{': ' if subject else ''}{name}{': ' if text else ''}{text}")


def name_error(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


def check(code: int, message: str | None = None, subject: str = "") -> None:
    """Raise RequestError unless a code is NONE."""
    if code != ErrorCode.NONE:
        raise make_error(code, message, subject)


class Cluster:
    """The brokers of one connection; a context manager, which closes its connections."""

    def __init__(
        self,
        connection: Connection,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
        connect: Callable[[Address, ClientSecurity], WireClient] = WireClient,
        retry_s: float = RETRY_S,
    ) -> None:
        self._connection = connection
        self._security = make_security(connection)
        self._make_client = connect
        self._retry_s = retry_s
        self._sleep = sleep
        self._monotonic = monotonic
        self._any: WireClient | None = None
        self._by_address: dict[Address, WireClient] = {}
        self._nodes: dict[int, Address] = {}
        self._has_all_nodes = False
        self._controller_id = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for client in self._by_address.values():
            client.close()

    def any_broker(self) -> WireClient:
        """Return a connection to the first of the addresses that answers. Raises NoResponseError."""
        if self._any is None:
            failures: list[NoResponseError] = []
            for address in self._connection.addresses:
                try:
                    self._any = self._connect(address)
                    break
                except NoResponseError as error:
                    failures.append(error)
            else:
                raise failures[0] if len(failures) == 1 else NoAddressError(failures)
        return self._any

    def broker(self, node_id: int) -> WireClient:
        """Return a connection to a broker. Raises NoResponseError; RequestError if there is no such broker."""
        if node_id not in self._nodes:
            self.fetch_metadata([])
        if node_id not in self._nodes:
            known = ", ".join(map(str, sorted(self._nodes)))
            raise RequestError("BROKER_NOT_AVAILABLE", f"there is no live broker {node_id}; live brokers are {known}")
        return self._connect(self._nodes[node_id])

    def node_ids(self) -> list[int]:
        """Return the ids of the live brokers."""
        if not self._has_all_nodes:
            self.fetch_metadata([])
        return sorted(self._nodes)

    def ask(self, request: Message, response_type: type[Response]) -> Response:
        """Send a request to any broker. Raises NoResponseError."""
        return self.any_broker().send(request, response_type)

    def ask_broker(self, node_id: int, request: Message, response_type: type[Response]) -> Response:
        """Send a request that changes nothing to a broker, again if its connection, made earlier, has ended.

        Raises NoResponseError; RequestError if there is no such broker.
        """
        if self._nodes.get(node_id) in self._by_address:
            try:
                return self.broker(node_id).send(request, response_type)
            except NoResponseError:
                self._disconnect(node_id)
        try:
            return self.broker(node_id).send(request, response_type)
        except NoResponseError:
            # A late response must not be taken for that to the next request.
            self._disconnect(node_id)
            raise

    def ask_controller(self, request: Message, response_type: type[Response]) -> Response:
        """Send a request to the controller. Raises NoResponseError."""

        def send() -> Response:
            if self._controller_id < 0:
                self.fetch_metadata([])
            has_controller = self._controller_id in self._nodes
            client = self.broker(self._controller_id) if has_controller else self.any_broker()
            return client.send(request, response_type)

        def forget() -> None:
            self._controller_id = -1

        return self._retry(send, _NO_CONTROLLER, forget)

    def ask_coordinator(
        self,
        key: str,
        key_type: int,
        request: Message,
        response_type: type[Response],
        last_version: int | None = None,
    ) -> Response:
        """Send a request to the coordinator of a group (0) or a transactional id (1). Raises NoResponseError."""
        coordinators: dict[str, int] = {}

        def send() -> Response:
            if not coordinators:
                coordinators.update(self.find_coordinators([key], key_type))
            return self.broker(coordinators[key]).send(request, response_type, last_version)

        return self._retry(send, _NO_COORDINATOR, coordinators.clear)

    def ask_coordinators(
        self,
        keys: Sequence[str],
        key_type: int,
        make_request: Callable[[list[str]], Message],
        response_type: type[Response],
        last_version: int | None = None,
    ) -> Iterator[tuple[int, Response]]:
        """Send a request that changes nothing to the coordinators of groups (0) or transactional ids (1).

        Yields the id of each coordinator with its response. A coordinator that moves or loads is asked again.
        """
        give_up_at = self._monotonic() + self._retry_s
        pending = list(keys)
        while pending:
            by_broker: dict[int, list[str]] = {}
            for key, broker in self.find_coordinators(pending, key_type).items():
                by_broker.setdefault(broker, []).append(key)
            pending = []
            for broker, names in by_broker.items():
                response = self.broker(broker).send(make_request(names), response_type, last_version)
                if _find_codes(response) & _NO_COORDINATOR and self._monotonic() < give_up_at:
                    pending += names
                else:
                    yield broker, response
            if pending:
                self._sleep(_PAUSE_S)

    def ask_each_broker(
        self, request: Message, response_type: type[Response], problems: list[str] | None = None
    ) -> Iterator[tuple[int, Response]]:
        """Send a request that changes nothing to each broker as a coordinator, again while it loads.

        Yields the id of each broker with its response. With `problems` a broker that does not answer is added to them,
        otherwise raises NoResponseError.
        """
        for broker in self.node_ids():
            send = partial(self.ask_broker, broker, request, response_type)
            try:
                response = self._retry(send, _NO_COORDINATOR, lambda: None)
            except NoResponseError as error:
                report_problem(error, f"groups of broker {broker}", problems)
                continue
            yield broker, response

    def find_coordinators(self, keys: Sequence[str], key_type: int) -> dict[str, int]:
        """Return the broker that coordinates each group (0) or transactional id (1). Raises RequestError."""
        from odradek.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

        def send() -> FindCoordinatorResponse:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
            return self.ask(request, FindCoordinatorResponse)

        response = self._retry(send, _NO_COORDINATOR, lambda: None, is_repeatable=True)
        found = {}
        for each in response.coordinators:
            if each.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                topic, properties = _COORDINATOR_TOPICS.get(key_type, ("its topic", "its replication factor"))
                hint = f"{topic} has no leader, or cannot be created with so few live brokers: see {properties}"
                raise RequestError("COORDINATOR_NOT_AVAILABLE", f"coordinator of {each.key} is not available: {hint}")
            check(each.error_code, each.error_message, f"coordinator of {each.key}")
            self._nodes.setdefault(each.node_id, Address(each.host, each.port))
            found[each.key] = each.node_id
        for key in keys:
            if key not in found:
                raise RequestError("COORDINATOR_NOT_AVAILABLE", f"the broker does not return the coordinator of {key}")
        return found

    def fetch_metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Return the metadata of topics, of all with None. Raises NoResponseError."""
        asked = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        response = self.ask(request, MetadataResponse)
        self._nodes = {node.node_id: Address(node.host, node.port) for node in response.brokers}
        self._has_all_nodes = True
        self._controller_id = response.controller_id
        return response

    def fetch_topics(self, names: Collection[str] | None = None) -> list[MetadataResponseTopic]:
        """Return topics, sorted by name. Raises RequestError if one does not exist, with the nearest names."""
        found = sorted(self.fetch_metadata(names).topics, key=lambda topic: topic.name or "")
        for topic in found:
            if names is not None and topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise self.unknown_topic(topic.name or "")
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise make_error(topic.error_code, None, f"topic {topic.name}")
        return found

    def unknown_topic(self, name: str) -> RequestError:
        """Return the error of a topic that does not exist."""
        names = [topic.name for topic in self.fetch_metadata().topics if topic.name is not None]
        return unknown_name("UNKNOWN_TOPIC_OR_PARTITION", f"topic {name} does not exist", name, names)

    def _connect(self, address: Address) -> WireClient:
        client = self._by_address.get(address)
        if client is None:
            client = self._by_address[address] = self._make_client(address, self._security)
        return client

    def _disconnect(self, node_id: int) -> None:
        """Close the connection to a broker, which the next request makes anew."""
        client = self._by_address.pop(self._nodes[node_id], None) if node_id in self._nodes else None
        if client is not None:
            client.close()
            if self._any is client:
                self._any = None

    def _retry(
        self,
        send: Callable[[], Response],
        transient: frozenset[ErrorCode],
        forget: Callable[[], None],
        *,
        is_repeatable: bool = False,
    ) -> Response:
        """Send a request until its response is not a transient error; call `forget` before each repetition.

        A request that changes something is repeated only if all parts of it have failed.
        """
        give_up_at = self._monotonic() + self._retry_s
        while True:
            response = send()
            codes = _find_codes(response)
            is_transient = bool(codes & transient) if is_repeatable else bool(codes) and codes <= transient
            if not is_transient or self._monotonic() >= give_up_at:
                return response
            self._sleep(_PAUSE_S)
            forget()


def _find_codes(response: Message) -> set[int]:
    """Return the error code of a response, or those of the items in its lists if it has none of its own."""
    own = getattr(response, "error_code", ErrorCode.NONE)
    return {own} if own else set(_iter_item_codes(response, 2))


def _iter_item_codes(struct: Any, depth: int) -> Iterator[int]:
    for name in type(struct).__slots__:
        items = getattr(struct, name)
        for item in items if isinstance(items, list) else ():
            if isinstance(item, Struct):
                if (code := getattr(item, "error_code", None)) is not None:
                    yield code
                if depth > 1:
                    yield from _iter_item_codes(item, depth - 1)
