"""Requests about thousands of ACLs run in slices, and a failing store is reported for each ACL."""

from types import SimpleNamespace

import pytest
from twisted.internet.task import Clock

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.protocol.errors import ErrorCode
from odradek.protocol.messages.create_acls import CreateAclsRequest, CreateAclsRequestAclCreation
from odradek.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsRequestDeleteAclsFilter
from odradek.protocol.messages.describe_acls import DescribeAclsRequest
from odradek.replication.controller.acl_changes import AclChanges
from odradek.replication.controller.events import EventLoop, ImmediateExecutor
from odradek.replication.controller.registration import prepare_store
from odradek.replication.metadata.acls.acl_cache import AclCache
from odradek.replication.metadata.acls.bindings import AclEntry, AclFilter, ResourcePattern
from odradek.replication.metadata.memory_store import MemoryMetadataServer
from odradek.replication.metadata.store import StoreUnavailableError, run_now
from odradek.replication.pauses import no_pause
from odradek.server.handlers.security import acls as handlers
from odradek.server.work.slices import Slices

COUNT = 10_000
ANY_FILTER = {
    "resource_type_filter": ResourceType.ANY, "resource_name_filter": None, "pattern_type_filter": PatternType.ANY,
    "principal_filter": None, "host_filter": None, "operation": Operation.ANY, "permission_type": Permission.ANY,
}  # fmt: skip


class CountingSlices(Slices):
    """Slices that count the steps of the work."""

    def __init__(self, clock):
        super().__init__(clock, clock.seconds, slice_s=0)
        self.steps = 0

    def run(self, work, at_once=0):
        return super().run(self._count(work), at_once)

    def _count(self, work):
        while True:
            try:
                waited_for = next(work)
            except StopIteration as end:
                return end.value
            self.steps += 1
            yield waited_for


class Setup:
    """The services of the handlers."""

    def __init__(self):
        self.clock = Clock()
        store = MemoryMetadataServer().connect()
        run_now(prepare_store(store, "a-cluster"))
        cache = AclCache(store, lambda description, work: None, no_pause)
        changes = AclChanges(store, cache, EventLoop(ImmediateExecutor()), lambda: 0)
        run_now(changes.load())
        self.store, self.cache = store, cache
        self.services = SimpleNamespace(acls=changes, slices=CountingSlices(self.clock))

    def ask(self, handler, request):
        """Return the response, and the number of steps that it took."""
        outcome = []
        before = self.services.slices.steps
        handler(self.services, None, request).addBoth(outcome.append)
        while not outcome:
            self.clock.advance(0)
        return outcome[0], self.services.slices.steps - before


@pytest.fixture
def setup():
    return Setup()


def creation(name="t", principal="User:a"):
    return CreateAclsRequestAclCreation(
        resource_type=ResourceType.TOPIC, resource_name=name, resource_pattern_type=PatternType.LITERAL,
        principal=principal, host="*", operation=Operation.READ, permission_type=Permission.ALLOW,
    )  # fmt: skip


def test_thousands_of_patterns_are_described_in_steps(setup):
    entry = AclEntry("User:a", "*", Operation.READ, Permission.ALLOW)
    table = {ResourcePattern(ResourceType.TOPIC, f"t{index}"): frozenset({entry}) for index in range(COUNT)}
    setup.cache.put(table)
    response, steps = setup.ask(handlers.describe_acls, DescribeAclsRequest(**ANY_FILTER))
    assert len(response.resources) == COUNT
    assert steps > COUNT / 200
    one = {**ANY_FILTER, "resource_name_filter": "t5", "resource_type_filter": ResourceType.TOPIC}
    response, steps = setup.ask(handlers.describe_acls, DescribeAclsRequest(**one))
    assert [resource.resource_name for resource in response.resources] == ["t5"]
    assert steps == 0


def test_thousands_of_entries_of_a_pattern_are_described_in_steps(setup):
    entries = frozenset(AclEntry(f"User:{index}", "*", Operation.READ, Permission.ALLOW) for index in range(COUNT))
    setup.cache.put({ResourcePattern(ResourceType.TOPIC, "t"): entries})
    response, steps = setup.ask(handlers.describe_acls, DescribeAclsRequest(**ANY_FILTER))
    assert len(response.resources[0].acls) == COUNT
    assert steps > COUNT / 200


def test_a_change_while_acls_are_described_does_not_fail_the_request(setup):
    entry = AclEntry("User:a", "*", Operation.READ, Permission.ALLOW)
    patterns = [ResourcePattern(ResourceType.TOPIC, f"t{index}") for index in range(COUNT)]
    setup.cache.put(dict.fromkeys(patterns, frozenset({entry})))
    steps = handlers._describe(setup.services.acls, AclFilter())
    next(steps)
    setup.cache.put({patterns[-1]: frozenset(), ResourcePattern(ResourceType.TOPIC, "new"): frozenset({entry})})
    with pytest.raises(StopIteration) as ended:
        while True:
            next(steps)
    assert len(ended.value.value.resources) == COUNT - 1


def test_thousands_of_acls_are_created_and_deleted_in_steps(setup):
    creations = [creation(f"t{index}") for index in range(2000)]
    response, steps = setup.ask(handlers.create_acls, CreateAclsRequest(creations=creations))
    assert {result.error_code for result in response.results} == {0}
    assert steps > 10
    fields = [{**ANY_FILTER, "resource_name_filter": f"t{index}"} for index in range(2000)]
    filters = [DeleteAclsRequestDeleteAclsFilter(**one) for one in fields]
    response, steps = setup.ask(handlers.delete_acls, DeleteAclsRequest(filters=filters))
    assert {len(result.matching_acls) for result in response.filter_results} == {1}
    assert steps > 10
    assert setup.cache.acls == {}


def test_a_failing_store_is_reported_for_each_acl(setup, monkeypatch):
    async def fail(operations):
        raise StoreUnavailableError("the disk failed")

    setup.ask(handlers.create_acls, CreateAclsRequest(creations=[creation("old")]))
    monkeypatch.setattr(setup.store, "transaction", fail)
    request = CreateAclsRequest(creations=[creation("t"), creation(""), creation("t", "User:b"), creation("a/b")])
    response, _ = setup.ask(handlers.create_acls, request)
    failed, invalid = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_REQUEST
    assert [result.error_code for result in response.results] == [failed, invalid, failed, invalid]
    assert response.results[0].error_message == "the disk failed"
    filters = [DeleteAclsRequestDeleteAclsFilter(**ANY_FILTER)]
    response, _ = setup.ask(handlers.delete_acls, DeleteAclsRequest(filters=filters))
    assert [result.error_code for result in response.filter_results] == [failed]
