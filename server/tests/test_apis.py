"""The table of APIs: each API in every version over the wire, and the page that is generated from the table."""

import socket
import struct
from pathlib import Path

import pytest

from odradek.protocol import codec
from odradek.protocol.headers import response_is_flexible
from odradek.protocol.messages import request_class, response_class
from odradek.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from odradek.protocol.messages.describe_acls import DescribeAclsRequest
from odradek.protocol.messages.produce import ProduceRequest
from odradek.protocol.tests.values import version_in_failure
from odradek.server import compatibility
from odradek.server.apis import TELEMETRY_KEYS, advertised_first_version, served_apis
from odradek.server.tests.wire import TIMEOUT_S
from odradek.testing import OdradekBroker

ALONE = served_apis(in_cluster=False)


@pytest.fixture(scope="module")
def broker():
    with OdradekBroker() as broker:
        yield broker


def ask(connection, key, version, body):
    """Send one request. Return its response without the header."""
    flexible = request_class(key).is_flexible(version)
    content = struct.pack(">hhih", key, version, 7, 4) + b"test" + (b"\0" if flexible else b"") + body
    connection.sendall(struct.pack(">i", len(content)) + content)
    stream = connection.makefile("rb")
    size, correlation_id = struct.unpack(">ii", stream.read(8))
    answer = stream.read(size - 4)
    assert correlation_id == 7
    if response_is_flexible(key, flexible):
        assert answer[0] == 0
        return answer[1:]
    return answer


@pytest.mark.parametrize("api", ALONE.values(), ids=[api.name for api in ALONE.values()])
def test_each_version_of_each_api_is_answered_in_its_schema(broker, api):
    for version in range(api.first_version, api.last_version + 1):
        with version_in_failure(request_class(api.key), version):
            check_answer(broker, api, version)


def check_answer(broker, api, version):
    request = request_class(api.key)()
    if isinstance(request, ProduceRequest):
        request.acks = 1
    if isinstance(request, ApiVersionsRequest):
        request.client_software_name, request.client_software_version = "test", "1"
    if isinstance(request, DescribeAclsRequest):
        # Code 0 closes the connection.
        request.resource_type_filter = request.operation = request.permission_type = 1
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as connection:
        answer = ask(connection, api.key, version, codec.encode(request, version))
    response = codec.decode(response_class(api.key), version, answer)
    assert getattr(response, "error_code", 0) != -1
    assert "unexpected error" not in broker.log_text()


def test_api_versions_advertises_the_table(broker):
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as connection:
        answer = ask(connection, 18, 0, b"")
    response = codec.decode(ApiVersionsResponse, 0, answer)
    expected = [api for api in ALONE.values() if api.key not in TELEMETRY_KEYS]
    advertised = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
    assert advertised == {api.key: (advertised_first_version(api), api.last_version) for api in expected}


@pytest.mark.parametrize("version", [-1, 5, 32767])
def test_api_versions_in_an_unknown_version_is_answered_in_version_0(broker, version):
    with socket.create_connection(("127.0.0.1", broker.port), timeout=TIMEOUT_S) as connection:
        content = struct.pack(">hhih", 18, version, 7, 4) + b"test" + b"whatever"
        connection.sendall(struct.pack(">i", len(content)) + content)
        stream = connection.makefile("rb")
        size, correlation_id = struct.unpack(">ii", stream.read(8))
        response = codec.decode(ApiVersionsResponse, 0, stream.read(size - 4))
    assert correlation_id == 7
    assert response.error_code == 35
    assert [(row.api_key, row.min_version, row.max_version) for row in response.api_keys] == [(18, 0, 4)]


def test_the_compatibility_page_is_up_to_date():
    page = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
    assert page.read_text() == compatibility.format_markdown()


def test_a_broker_of_a_cluster_describes_no_quorum():
    describe_quorum = 55
    assert describe_quorum in served_apis(in_cluster=False)
    assert describe_quorum not in served_apis(in_cluster=True)
