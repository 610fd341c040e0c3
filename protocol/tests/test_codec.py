"""The compiled codec against the interpreter of the same declarations, for every message and version."""

import pytest

from odradek.protocol import codec, interpreter
from odradek.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.create_delegation_token import CreateDelegationTokenResponse
from odradek.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenResponse,
    DescribeDelegationTokenResponseDescribedDelegationToken,
)
from odradek.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from odradek.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from odradek.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from odradek.protocol.schema import Message, Struct, field
from odradek.protocol.tests.values import MESSAGE_IDS, MESSAGES, version_in_failure, versions_of
from odradek.protocol.types import DecodeError, Int32, Int64


@pytest.mark.parametrize("cls", MESSAGES, ids=MESSAGE_IDS)
def test_defaults_agree_with_the_interpreter(cls):
    for version in versions_of(cls):
        with version_in_failure(cls, version):
            encoded = codec.encode(cls(), version)
            assert encoded == interpreter.encode(cls(), version)
            assert codec.decode(cls, version, encoded) == interpreter.decode(cls, version, encoded)


@pytest.mark.parametrize("cls", MESSAGES, ids=MESSAGE_IDS)
def test_every_shortened_message_is_refused(cls):
    for version in versions_of(cls):
        encoded = codec.encode(cls(), version)
        for size in range(len(encoded)):
            with version_in_failure(cls, version), pytest.raises(DecodeError):
                codec.decode(cls, version, encoded[:size])


class Inner(Struct):
    number: Int32 = 7


class Sample(Message, versions="0-2", flexible=1):
    text: str | None
    inners: list[Inner] | None
    counts: list[Int64]
    maybe: Inner | None = field(since=1, default=None)
    note: str = field(since=2, tag=3)
    extra: Inner = field(since=2, tag=0)


def test_tagged_fields_are_written_only_when_set_and_in_order_of_tags():
    bare = codec.encode(Sample(text=None, inners=None), 2)
    assert bare == b"\x00\x00\x01\xff\x00"
    full = Sample(text="a", inners=[Inner()], counts=[1], maybe=Inner(number=2), note="n", extra=Inner(number=1))
    encoded = codec.encode(full, 2)
    assert encoded == interpreter.encode(full, 2)
    assert codec.decode(Sample, 2, encoded) == full


def test_unknown_tags_are_skipped():
    encoded = codec.encode(Sample(text="a", inners=[]), 1)
    with_tag = encoded[:-1] + b"\x01\x09\x02xy"
    assert codec.decode(Sample, 1, with_tag) == Sample(text="a", inners=[])


@pytest.mark.parametrize("count", [2**31 - 1, 10_000, 100])
def test_a_count_beyond_the_message_allocates_nothing(count):
    with pytest.raises(DecodeError, match="past the end"):
        codec.decode(Sample, 0, b"\xff\xff" + count.to_bytes(4, "big") + b"\x00" * 8)


@pytest.mark.parametrize("decode", [codec.decode, interpreter.decode])
def test_a_compact_string_is_no_longer_than_another(decode):
    longest, longer = (bytes(codec.encode(Sample(text="x" * size), 1)) for size in (32767, 32768))
    assert len(decode(Sample, 1, longest).text) == 32767
    with pytest.raises(DecodeError):
        decode(Sample, 1, longer)


def test_null_where_null_is_not_allowed():
    with pytest.raises(DecodeError, match="may not be null"):
        codec.decode(Sample, 0, b"\xff\xff" + b"\xff\xff\xff\xff" + b"\xff\xff\xff\xff")
    with pytest.raises(ValueError, match="may not be null"):
        codec.encode(Sample(counts=None), 0)


def test_fresh_arrays_are_not_shared():
    first, second = Sample(), Sample()
    first.counts.append(1)
    assert second.counts == []


HIDING = (
    CreateDelegationTokenResponse(token_id="public", hmac=b"secret"),
    RenewDelegationTokenRequest(hmac=b"secret"),
    ExpireDelegationTokenRequest(hmac=b"secret"),
    DescribeDelegationTokenResponse(
        tokens=[DescribeDelegationTokenResponseDescribedDelegationToken(token_id="public", hmac=b"secret")]
    ),
    AlterConfigsRequest(
        resources=[
            AlterConfigsRequestAlterConfigsResource(
                configs=[AlterConfigsRequestAlterableConfig(name="public", value="secret")]
            )
        ]
    ),
    IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequestAlterConfigsResource(
                configs=[IncrementalAlterConfigsRequestAlterableConfig(name="public", value="secret")]
            )
        ]
    ),
)


@pytest.mark.parametrize("message", HIDING, ids=lambda message: type(message).__name__)
def test_a_repr_has_no_secret(message):
    assert "secret" not in repr(message)
    assert "[hidden]" in repr(message)
