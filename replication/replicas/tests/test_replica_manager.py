"""Publications of the image that are applied in steps, between which others follow."""

from odradek.replication.metadata.image import PartitionMetadata, TopicMetadata
from odradek.replication.replicas.tests.test_broker_control import ID, ME, OTHER, Member
from odradek.replication.tests.support import Step


def test_a_role_that_is_published_while_earlier_ones_are_applied():
    """The step of partition 0 is over when it is assigned to this broker; its publication has a task of its own."""
    member, works = Member(), []
    member.assignments.publish()

    def run_steps(work):
        works.append(work)
        return Step()

    member.replicas.run_steps = run_steps
    mine, others = (PartitionMetadata(ME, 0, (broker,), (broker,)) for broker in (ME, OTHER))
    publish(member, (others, mine))
    [work] = works
    next(work)
    publish(member, (mine, mine))
    for _ in work:
        pass
    assert sorted(member.replicas.partitions) == [("t", 0), ("t", 1)]


def publish(member, partitions):
    member.assignments.put_topic(TopicMetadata("t", ID, partitions))
    member.assignments.publish()
