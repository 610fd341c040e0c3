"""The one table of APIs: what is served, in which versions, by whom.

ApiVersions, dispatch, docs/compatibility.md and the test that every row is exercised derive from it. An API or a
version that is not whole is not in it.
"""

from collections import Counter
from collections.abc import Callable, Generator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from odradek.protocol.codec import (
    MAX_ELEMENTS,
    Buffer,
    Decoder,
    Encoder,
    Splice,
    decoder,
    small_encoder,
    step_decoder,
    step_encoder,
)
from odradek.protocol.errors import KafkaError
from odradek.protocol.headers import API_VERSIONS_KEY, api_code, response_is_flexible, split_api_code
from odradek.protocol.messages import request_class, response_class
from odradek.protocol.schema import Message
from odradek.protocol.types import DecodeError

if TYPE_CHECKING:
    from odradek.server.services import Services


class Api(NamedTuple):
    """A row of the table: the versions served and the handler, as `module:function` under `server/handlers`.

    max_elements: the most array elements that a request may have; many only where the handler works in slices
    """

    key: int
    name: str
    first_version: int
    last_version: int
    handler: str
    max_elements: int = 20_000


PRODUCE_KEY: Final = 0

APIS: Final = {
    api.key: api
    for api in (
        Api(0, "Produce", 3, 13, "produce:produce"),
        Api(1, "Fetch", 4, 18, "fetch:fetch", MAX_ELEMENTS),
        Api(2, "ListOffsets", 1, 11, "list_offsets:list_offsets", MAX_ELEMENTS),
        Api(3, "Metadata", 0, 13, "metadata:metadata", MAX_ELEMENTS),
        Api(8, "OffsetCommit", 2, 10, "group_offsets:offset_commit"),
        Api(9, "OffsetFetch", 1, 10, "group_offsets:offset_fetch", MAX_ELEMENTS),
        Api(10, "FindCoordinator", 0, 6, "find_coordinator:find_coordinator", MAX_ELEMENTS),
        Api(11, "JoinGroup", 0, 9, "groups:join_group"),
        Api(12, "Heartbeat", 0, 4, "groups:heartbeat"),
        Api(13, "LeaveGroup", 0, 5, "groups:leave_group"),
        Api(14, "SyncGroup", 0, 5, "groups:sync_group"),
        Api(15, "DescribeGroups", 0, 6, "groups:describe_groups"),
        Api(16, "ListGroups", 0, 5, "groups:list_groups"),
        Api(18, "ApiVersions", 0, 4, "api_versions:api_versions"),
        Api(19, "CreateTopics", 2, 7, "topics:create_topics", 50_000),
        Api(20, "DeleteTopics", 1, 6, "topics:delete_topics"),
        Api(21, "DeleteRecords", 0, 2, "delete_records:delete_records", MAX_ELEMENTS),
        Api(22, "InitProducerId", 0, 5, "producers:init_producer_id"),
        Api(23, "OffsetForLeaderEpoch", 2, 4, "list_offsets:offset_for_leader_epoch", MAX_ELEMENTS),
        Api(24, "AddPartitionsToTxn", 0, 5, "transactions:add_partitions_to_txn"),
        Api(25, "AddOffsetsToTxn", 0, 4, "transactions:add_offsets_to_txn"),
        Api(26, "EndTxn", 0, 5, "transactions:end_txn"),
        Api(27, "WriteTxnMarkers", 1, 2, "transaction_markers:write_txn_markers"),
        Api(28, "TxnOffsetCommit", 0, 5, "transaction_offsets:txn_offset_commit"),
        Api(32, "DescribeConfigs", 1, 4, "configs:describe_configs", 100_000),
        Api(33, "AlterConfigs", 0, 2, "configs:alter_configs"),
        Api(35, "DescribeLogDirs", 1, 5, "log_dirs:describe_log_dirs", MAX_ELEMENTS),
        Api(37, "CreatePartitions", 0, 3, "topics:create_partitions", 50_000),
        Api(42, "DeleteGroups", 0, 2, "groups:delete_groups"),
        Api(44, "IncrementalAlterConfigs", 0, 1, "configs:incremental_alter_configs"),
        Api(47, "OffsetDelete", 0, 0, "group_offsets:offset_delete"),
        Api(57, "UpdateFeatures", 0, 2, "features:update_features"),
        Api(60, "DescribeCluster", 0, 2, "metadata:describe_cluster"),
        Api(61, "DescribeProducers", 0, 0, "producers:describe_producers"),
        Api(65, "DescribeTransactions", 0, 0, "transactions:describe_transactions"),
        Api(66, "ListTransactions", 0, 2, "transactions:list_transactions"),
        Api(74, "ListConfigResources", 0, 1, "configs:list_config_resources"),
        Api(75, "DescribeTopicPartitions", 0, 0, "topic_partitions:describe_topic_partitions", MAX_ELEMENTS),
    )
}
"""Source of keys and versions: Apache Kafka 4.3.0's own ApiVersions answer, less what is not served yet.

InitProducerId 6 (KIP-939) is unstable there, and served with `unstable.api.versions.enable` only."""


def advertised_first_version(api: Api) -> int:
    """The first version ApiVersions names.

    Produce is advertised from 0 although it is served from 3: librdkafka switches off compression codecs otherwise
    (KAFKA-18659).
    """
    return 0 if api.key == PRODUCE_KEY else api.first_version


class BoundApi:
    """One API in one version, ready to be called: codec, handler and the shape of its failure.

    decode: for requests of up to `SMALL_MESSAGE_BYTES`
    encode: raises `LargeMessageError` for a large response
    """

    __slots__ = (
        "_error_response",
        "_request_type",
        "_response_type",
        "decode",
        "encode",
        "flexible",
        "flexible_response_header",
        "handle",
        "key",
        "max_elements",
        "name",
        "unsupported_version",
        "version",
    )

    def __init__(self, api: Api, version: int, unsupported_version: bool = False) -> None:
        request_type, response_type = request_class(api.key), response_class(api.key)
        module_name, _, function_name = api.handler.partition(":")
        module = import_module(f"odradek.server.handlers.{module_name}")
        self._request_type, self._response_type = request_type, response_type
        self.key = api.key
        self.name = api.name
        self.max_elements = api.max_elements
        self.version = version
        self.unsupported_version = unsupported_version
        self.flexible = request_type.is_flexible(version)
        self.flexible_response_header = response_is_flexible(api.key, self.flexible)
        self.decode: Decoder = decoder(request_type, version)
        self.encode: Encoder = small_encoder(response_type, version)
        self.handle: Callable[[Services, Any, Any], Any] = getattr(module, function_name)
        self._error_response: Callable[[Any, int, KafkaError], Message | None] = getattr(
            module, f"{function_name}_error"
        )

    def decode_in_steps(self, frame: Buffer, position: int) -> Generator[None, None, tuple[Any, int]]:
        """Decode a request of any size; returns as `decode`."""
        return step_decoder(self._request_type, self.version)(frame, position, len(frame), self.max_elements)

    def encode_in_steps(
        self, response: Message, out: bytearray, splices: list[Splice]
    ) -> Generator[None, None, None]:
        """Encode a response of any size, as `encode`."""
        return step_encoder(self._response_type, self.version)(response, out, splices)

    def error_response(self, request: Any, version: int, error: KafkaError) -> Message | None:
        """The response that carries `error` for the whole request; None if the connection is to be closed instead."""
        return self._error_response(request, version, error)


class Dispatch:
    """Finds who answers a request. Modules are imported and codecs compiled when an API is first asked for."""

    def __init__(self, services: "Services", apis: dict[int, Api] = APIS) -> None:
        self.services = services
        self.unexpected_errors: Counter[str] = Counter()
        self._apis = apis
        self.bound: dict[int, BoundApi] = {}

    def find(self, code: int) -> BoundApi:
        """The API and version of an API code; `bound` has those that were asked for before.

        Raises `DecodeError` if it is not served, or cannot be loaded now: Kafka closes such a connection.

        ApiVersions in a version that there is not is the exception: it is answered in version 0, which says what there
        is, so that the client can ask again (KIP-511).
        """
        found = self.bound.get(code)
        return found if found is not None else self._bind(*split_api_code(code))

    def count_unexpected(self, api_name: str) -> None:
        """Remember that a handler failed in a way nobody foresaw."""
        self.unexpected_errors[api_name] += 1

    def _bind(self, key: int, version: int) -> BoundApi:
        api = self._apis.get(key)
        if api is None:
            raise DecodeError(f"unknown api key {key}")
        if api.first_version <= version <= api.last_version:
            try:
                bound = self.bound[api_code(key, version)] = BoundApi(api, version)
            except OSError as error:
                # No descriptor to import it with. The client connects again, and the next attempt imports anew.
                raise DecodeError(f"{api.name} cannot be loaded now: {error}") from error
            return bound
        if key == API_VERSIONS_KEY:
            return BoundApi(api, 0, unsupported_version=True)
        raise DecodeError(f"{api.name} has no version {version}")
