"""The little that a coordinator reads of the "consumer" embedded protocol: which topics a member subscribes to.

Source: ConsumerProtocolSubscription in Kafka's message definitions. Every version starts with version 0's fields, so
only those are read, whatever the version says.
"""

import struct

PROTOCOL_TYPE = "consumer"


def subscribed_topics(subscription: bytes) -> list[str]:
    """The topics of a serialized subscription (i16 version, i32 count, then strings of i16 length).

    Raises ValueError if the bytes are not that, which group members are free to send.
    """
    try:
        _version, count = struct.unpack_from(">hi", subscription, 0)
        if count < 0:
            raise ValueError(f"topic count {count}")
        position, topics = 6, []
        for _ in range(count):
            (length,) = struct.unpack_from(">h", subscription, position)
            position += 2
            if length < 0 or position + length > len(subscription):
                raise ValueError(f"topic name length {length}")
            topics.append(bytes(subscription[position : position + length]).decode())
            position += length
        (user_data_length,) = struct.unpack_from(">i", subscription, position)
    except struct.error as error:
        raise ValueError("subscription ends early") from error
    if user_data_length > len(subscription) - position - 4:
        raise ValueError(f"user data length {user_data_length}")
    return topics
