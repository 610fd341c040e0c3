"""Ids for new topics and clusters (KIP-516)."""

from odradek.replication.controller.states.assignment import RandomSource


def random_topic_id(random: RandomSource) -> bytes:
    """Return a version 4 UUID that Kafka does not reserve and whose text form does not begin with a dash."""
    while True:
        bits = random.getrandbits(128)
        bits = bits & ~(0xF << 76) & ~(0x3 << 62) | 0x4 << 76 | 0x2 << 62
        topic_id = bits.to_bytes(16, "big")
        if topic_id[0] >> 2 != 62:
            return topic_id
