"""Counts of error codes."""

import pytest

from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.api_versions import ApiVersionsResponse
from odradek.protocol.messages.fetch import (
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)
from odradek.protocol.messages.metadata import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from odradek.protocol.schema import rows
from odradek.server.measurements.response_errors import MAX_CODES, MAX_MADE_ROWS, ResponseErrors


def fetch_response(*codes, error_code=0):
    rows = [FetchResponsePartitionData(partition_index=0, error_code=code, records=b"") for code in codes]
    topic = FetchResponseFetchableTopicResponse(topic="t", partitions=rows)
    return FetchResponse(error_code=error_code, responses=[topic])


def test_codes_of_all_levels_are_counted():
    errors = ResponseErrors()
    errors.count("Fetch", fetch_response(0, 0, ErrorCode.OFFSET_OUT_OF_RANGE))
    errors.count("Fetch", fetch_response(0, error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
    errors.count("ApiVersions", ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))
    assert errors.counts == {
        ("Fetch", 0): 4,
        ("Fetch", ErrorCode.OFFSET_OUT_OF_RANGE): 1,
        ("Fetch", ErrorCode.FETCH_SESSION_ID_NOT_FOUND): 1,
        ("ApiVersions", ErrorCode.UNSUPPORTED_VERSION): 1,
    }


def test_null_arrays_have_no_codes():
    errors = ResponseErrors()
    response = MetadataResponse()
    response.topics = None  # type: ignore[assignment]
    errors.count("Metadata", response)
    assert sum(errors.counts.values()) <= 1


def test_the_codes_of_a_large_response_are_bounded():
    errors = ResponseErrors()
    errors.count("Fetch", fetch_response(*[0] * (2 * MAX_CODES)))
    assert sum(errors.counts.values()) == MAX_CODES


@pytest.mark.parametrize("partitions", [1, 10, 10 * MAX_MADE_ROWS])
def test_rows_that_are_made_for_their_codes_are_bounded(partitions):
    made = []

    def make(kind):
        def make_one(item):
            made.append(item)
            if kind is MetadataResponsePartition:
                return MetadataResponsePartition(partition_index=0, replica_nodes=[], isr_nodes=[])
            return MetadataResponseTopic(name="t", partitions=rows(make(MetadataResponsePartition), range(partitions)))

        return make_one

    errors = ResponseErrors()
    errors.count("Metadata", MetadataResponse(topics=rows(make(MetadataResponseTopic), range(10 * MAX_MADE_ROWS))))
    assert len(made) == MAX_MADE_ROWS
    assert errors.counts["Metadata", 0] >= MAX_MADE_ROWS


def test_the_number_of_uncounted_responses_never_decreases():
    errors = ResponseErrors()
    assert errors.find_uncounted("Produce", 100) == 100
    # A response with many codes is one response, and is counted before its request is.
    errors.count("Produce", fetch_response(*[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 50))
    errors.count("Fetch", fetch_response(0))
    assert errors.find_uncounted("Produce", 100) == 100
    assert errors.find_uncounted("Produce", 101) == 100
    assert errors.find_uncounted("Produce", 111) == 110
