"""Spark's Kafka source and sink over SASL_SSL, with a user's password and with a delegation token.

The users have only the rights that Spark needs: neither groups nor transactional ids.
"""

from collections.abc import Iterator
from typing import Any, Self

import pytest
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]
from pyspark.sql import SparkSession

from spark_it.tests.connector.test_streaming import AVAILABLE_NOW
from spark_it.tests.data import digest, digest_of, rows, rows_in_spark
from spark_it.tests.kafka_frames import KafkaFrames, finish
from spark_it.tests.secured import MECHANISM, SecuredBroker, topic

DENIED = r"TopicAuthorizationException: Not authorized to access topics: \[{}\]"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def frames(spark: SparkSession, secured: SecuredBroker, tmp_path: Any) -> Iterator[KafkaFrames]:
    with KafkaFrames(spark, secured.connection.servers, tmp_path) as made:
        yield made


@pytest.fixture
def job(secured: SecuredBroker, unique: str) -> str:
    """A user that may write and read topic `source`, and write topic `target`, of the same prefix."""
    source, target = (secured.topics.create(f"{unique}-{name}", 2) for name in ("source", "target"))
    rights = [*topic(source, AclOperation.READ, AclOperation.WRITE), *topic(target, AclOperation.WRITE)]
    return secured.add_user(unique, rights)


def options(settings: dict[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in settings.items()}


def run_job(frames: KafkaFrames, secured: SecuredBroker, job: str, settings: dict[str, str]) -> None:
    """Write a batch to the source and read it, and copy it to the target in a stream."""
    source, target = f"{job}-source", f"{job}-target"
    frames.write(rows_in_spark(frames.spark, 500), source, **options(settings))
    assert digest(frames.read(source, **options(settings))) == digest_of(rows(500))
    stream = frames.read_stream(source, **options(settings)).select("key", "value")
    finish(frames.write_stream(stream, target, "checkpoint", AVAILABLE_NOW, **options(settings)))
    assert digest_of((record.key(), record.value()) for record in secured.read(target)) == digest_of(rows(500))
    with pytest.raises(Exception, match=DENIED.format(target)):
        frames.read(target, **options(settings)).count()


def test_a_user_with_a_password(frames: KafkaFrames, secured: SecuredBroker, job: str) -> None:
    run_job(frames, secured, job, secured.connection.java(job))
    wrong = secured.connection.java(job, "wrong")
    with pytest.raises(Exception, match="SaslAuthenticationException: Authentication failed"):
        frames.read(f"{job}-source", **options(wrong)).count()


class Tokens:
    """Delegation tokens of the broker, as the driver obtains and holds them.

    At its start a driver calls the same provider if it has a Kerberos login. Everything else is as in a cluster: the
    provider connects with the settings `spark.kafka.clusters.*`, and sources and sinks use the token if these settings
    match their brokers.
    """

    def __init__(self, spark: SparkSession, secured: SecuredBroker, user: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        self._conf = self._jvm.org.apache.spark.SparkEnv.get().conf()
        connection = secured.connection
        cluster = {
            "auth.bootstrap.servers": connection.servers,
            "target.bootstrap.servers.regex": connection.servers.replace(".", r"\."),
            "security.protocol": "SASL_SSL",
            "sasl.token.mechanism": MECHANISM,
            **connection.java_tls(),
            **options(connection.java_sasl(user)),
        }
        self._users = self._jvm.org.apache.hadoop.security.UserGroupInformation
        self._before = self._users.getLoginUser()
        self._settings = {f"spark.kafka.clusters.secured.{name}": value for name, value in cluster.items()}

    def __enter__(self) -> Self:
        # Tokens cannot be removed from a user, and one without settings would fail all later queries of the session.
        self._users.setLoginUser(self._users.createRemoteUser(self._before.getShortUserName()))
        for name, value in self._settings.items():
            self._conf.set(name, value)
        return self

    def __exit__(self, *_: object) -> None:
        self._users.setLoginUser(self._before)
        for name in self._settings:
            self._conf.remove(name)

    def obtain(self) -> None:
        """Obtain a token, and add it to the credentials of the driver."""
        credentials = self._jvm.org.apache.hadoop.security.Credentials()
        hadoop = self._jvm.org.apache.hadoop.conf.Configuration()
        provider = self._jvm.org.apache.spark.kafka010.KafkaDelegationTokenProvider()
        provider.obtainDelegationTokens(hadoop, self._conf, credentials)
        assert credentials.numberOfTokens() == 1
        self._users.getCurrentUser().addCredentials(credentials)


def test_a_delegation_token(frames: KafkaFrames, secured: SecuredBroker, job: str) -> None:
    tls = secured.connection.java_tls()
    with Tokens(frames.spark, secured, job) as tokens:
        tokens.obtain()
        # Without a password the user can connect with the token only.
        secured.remove_user(job)
        run_job(frames, secured, job, tls)
