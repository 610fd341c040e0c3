"""Start of a member of a cluster with a real ZooKeeper: connection, cluster id, broker id."""

import itertools

import pytest

from odradek.log.storage.checkpoints import MetaProperties, write_meta_properties
from odradek.replication.controller.registration import StartError, prepare_store
from odradek.server.broker_ids import settle_broker_id
from odradek.server.cluster_tools.zookeeper_server import ZooKeeperEnsemble
from odradek.server.config import parse_config
from odradek.server.environment import Environment
from odradek.server.store_location import open_zookeeper_store
from odradek.server.stores.tests.zookeeper import TestReactor

chroots = itertools.count()


@pytest.fixture(scope="module")
def ensemble():
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def reactor():
    return TestReactor()


@pytest.fixture
def environment(reactor):
    return Environment(reactor)


@pytest.fixture
def connect(ensemble):
    return f"{ensemble.connect}/test-{next(chroots)}"


def member(connect, *directories, **values):
    named = {name.replace("_", "."): value for name, value in values.items()}
    log_dirs = ",".join(map(str, directories)) or "/none"
    return parse_config({"zookeeper.connect": connect, "log.dirs": log_dirs, **named}).config


def write_meta(environment, directory, cluster_id, broker_id):
    directory.mkdir(exist_ok=True)
    write_meta_properties(environment.fs, str(directory), MetaProperties(0, cluster_id, broker_id, None, {}))


def test_the_first_start_connects_and_creates_the_path(environment, reactor, connect, tmp_path):
    store = reactor.run(open_zookeeper_store(environment, member(connect, tmp_path, broker_id="1")))
    assert reactor.run(store.get_children("/")) == []
    reactor.run(store.close())


def test_log_directories_of_another_cluster_are_refused(environment, reactor, connect, tmp_path):
    config = member(connect, tmp_path / "new", tmp_path / "old", broker_id="1")
    write_meta(environment, tmp_path / "old", "cluster-of-the-directory", 1)
    prefix = (
        f"log directory {tmp_path / 'old'} belongs to cluster cluster-of-the-directory, but ZooKeeper "
        f"(zookeeper.connect={connect}) has "
    )
    with pytest.raises(StartError) as refused:
        reactor.run(open_zookeeper_store(environment, config))
    assert str(refused.value) == f"{prefix}no cluster; correct zookeeper.connect or log.dirs"

    store = reactor.run(open_zookeeper_store(environment, member(connect)))
    reactor.run(prepare_store(store, "cluster-in-zookeeper", is_new=True))
    reactor.run(store.close())
    with pytest.raises(StartError) as refused:
        reactor.run(open_zookeeper_store(environment, config))
    assert str(refused.value) == f"{prefix}cluster cluster-in-zookeeper; correct zookeeper.connect or log.dirs"

    write_meta(environment, tmp_path / "old", "cluster-in-zookeeper", 1)
    reactor.run(reactor.run(open_zookeeper_store(environment, config)).close())


def test_ids_are_generated_above_the_reserved_ones(environment, reactor, connect, tmp_path):
    def settle(*directories, **values):
        return reactor.run(settle_broker_id(environment, member(connect, *directories, **values))).node_id

    assert [settle(tmp_path), settle(tmp_path)] == [1001, 1002]
    assert settle(tmp_path, broker_id="7") == 7
    assert settle(tmp_path, reserved_broker_max_id="5000") == 5003
    one, two = tmp_path / "one", tmp_path / "two"
    write_meta(environment, two, "c", 1002)
    assert settle(one, two) == 1002, "the id in meta.properties"
    write_meta(environment, one, "c", 1001)
    with pytest.raises(StartError) as refused:
        settle(one, two)
    assert str(refused.value) == (
        f"the log directories belong to different brokers: 1001 in {one}, 1002 in {two}; check log.dirs"
    )


def test_a_broker_without_zookeeper_keeps_its_id(environment, reactor, tmp_path):
    config = parse_config({"log.dirs": str(tmp_path)}).config
    assert reactor.run(settle_broker_id(environment, config)) is config
