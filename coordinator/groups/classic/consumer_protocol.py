"""Topic subscriptions in the embedded protocol "consumer", the only part of it that the coordinator reads.

Source: ConsumerProtocolSubscription in Kafka's message definitions. Every version starts with version 0's fields, and
only those are read.
"""

import struct

PROTOCOL_TYPE = "consumer"
_MAX_STRING_BYTES = 0x7FFF


def subscribed_topics(subscription: bytes) -> list[str]:
    """Decode the topics of a serialized subscription (i16 version, i32 count, then strings of i16 length).

    Raises ValueError for other bytes, because members may send any metadata.
    """
    try:
        _version, count = struct.unpack_from(">hi", subscription, 0)
        if count < 0:
            raise ValueError(f"invalid topic count {count}")
        position, topics, size_bytes = 6, [], len(subscription)
        for _ in range(count):
            start = position + 2
            length = subscription[position] << 8 | subscription[position + 1]
            position = start + length
            if length > _MAX_STRING_BYTES or position > size_bytes:
                raise ValueError(f"invalid topic name length {length}")
            topics.append(subscription[start:position].decode())
        (user_data_length,) = struct.unpack_from(">i", subscription, position)
    except (struct.error, IndexError) as error:
        raise ValueError("subscription is incomplete") from error
    if user_data_length > len(subscription) - position - 4:
        raise ValueError(f"invalid user data length {user_data_length}")
    return topics
