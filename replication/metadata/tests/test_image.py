"""After any sequence of changes the controller's image equals the one loaded from the store."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from odradek.protocol.messages.create_topics import CreateTopicsRequestCreatableTopicConfig
from odradek.protocol.messages.delete_topics import DeleteTopicsRequest
from odradek.replication.controller.admin.tests.test_config_admin import BROKER, TOPIC, increment
from odradek.replication.controller.admin.tests.test_topic_admin import create, grow, new
from odradek.replication.metadata.image import ClusterMetadata
from odradek.replication.metadata.loader import load_image
from odradek.replication.metadata.store import run_now
from odradek.replication.tests.support import Cluster, log_keys

NAMES = st.sampled_from(["a", "b", "c.d", "c_d", "e", "__consumer_offsets"])
BROKERS = st.sampled_from(["", "1", "2"])
CHANGES = st.sampled_from(
    [
        ("segment.ms", 0, "5000"),
        ("segment.ms", 1, None),
        ("cleanup.policy", 2, "compact"),
        ("cleanup.policy", 3, "delete"),
        ("message.max.bytes", 0, "7000"),
        ("message.max.bytes", 1, None),
        ("log.cleanup.policy", 2, "compact"),
        ("retention.ms", 0, "never"),
    ]
)


class ImageMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.cluster = Cluster(others=[2])

    @rule(name=NAMES, partitions=st.integers(-1, 3), factor=st.integers(-1, 3), retention=st.booleans())
    def create(self, name, partitions, factor, retention):
        topic = new(name, partitions, factor)
        if retention:
            topic.configs = [CreateTopicsRequestCreatableTopicConfig(name="retention.ms", value="9")]
        create(self.cluster, topic)

    @rule(names=st.lists(NAMES, max_size=3))
    def delete(self, names):
        run_now(self.cluster.topics.delete_topics(DeleteTopicsRequest(topic_names=names), 5))

    @rule(name=NAMES, count=st.integers(0, 5))
    def grow(self, name, count):
        grow(self.cluster, (name, count))

    @rule(name=NAMES, change=CHANGES)
    def configure_topic(self, name, change):
        increment(self.cluster, (TOPIC, name, [change]))

    @rule(name=BROKERS, change=CHANGES)
    def configure_broker(self, name, change):
        increment(self.cluster, (BROKER, name, [change]))

    @rule(clean=st.booleans())
    def restart(self, clean):
        old = self.cluster
        if clean:
            run_now(old.controller.close())
        old.server.expire(old.store)
        self.cluster = Cluster(server=old.server, logs=old.logs)

    @invariant()
    def the_image_equals_the_stored_one(self):
        loaded = ClusterMetadata()
        run_now(load_image(self.cluster.store, loaded))
        assert loaded.contents() == self.cluster.image.contents()

    @invariant()
    def replicas_and_logs_are_those_of_the_image(self):
        mine = {
            (topic.name, index): (topic.topic_id, partition)
            for topic in self.cluster.image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if 1 in partition.replicas
        }
        replicas = self.cluster.replicas
        assert replicas.partitions.keys() == mine.keys() == set(log_keys(self.cluster))
        assert len(replicas.partitions_by_id) == len(mine)
        for key, (topic_id, metadata) in mine.items():
            partition = replicas.partitions[key]
            assert replicas.partitions_by_id[topic_id, key[1]] is partition
            assert (partition.leader, partition.leader_epoch) == (metadata.leader, metadata.leader_epoch)
            assert partition.is_leader == (metadata.leader == 1)
            assert partition.log.config == self.cluster.configs.topic(key[0])


ImageMachine.TestCase.settings = settings(
    max_examples=40, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
TestImage = ImageMachine.TestCase
