"""An authorizer that a test controls, and the guard of one API around a handler of the test."""

import random
from types import SimpleNamespace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from odradek.protocol.access_control import Operation, ResourceType
from odradek.server.apis import APIS
from odradek.server.authorization.stage import AuthorizationStage
from odradek.server.request import RequestContext
from odradek.server.work.slices import Slices

CLUSTER = (ResourceType.CLUSTER, "kafka-cluster")
IDS = {name: name.encode().ljust(16, b".") for name in ("open", "hidden")}


class ListedRights:
    """An authorizer that allows what a test lists: (operation, type of resource, name)."""

    def __init__(self, *allowed):
        self.allowed = set(allowed)
        self.version = 0
        self.asked = []
        self.audited = []

    def allows(self, client, operation, resource_type, name, *, audits_denial=True):
        right = operation, resource_type, name
        self.asked.append(right)
        if audits_denial and right not in self.allowed:
            self.audited.append(right)
        return right in self.allowed

    def allows_any(self, client, operation, resource_type):
        self.asked.append((operation, resource_type, None))
        return any(right[:2] == (operation, resource_type) for right in self.allowed)

    def revoke(self, *rights):
        self.allowed.difference_update(rights)
        self.version += 1

    def grant(self, *rights):
        self.allowed.update(rights)
        self.version += 1


def topic(operation, name="open"):
    return Operation[operation], ResourceType.TOPIC, name


def group(operation, name="open"):
    return Operation[operation], ResourceType.GROUP, name


def transaction(operation, name="open"):
    return Operation[operation], ResourceType.TRANSACTIONAL_ID, name


def cluster(operation):
    return Operation[operation], *CLUSTER


class Guarded:
    """The guard of an API. `requests` are those that the handler gets; `respond` makes its responses.

    The topics open and hidden exist.
    """

    def __init__(self, api, version, *allowed, respond=None):
        self.authorizer = ListedRights(*allowed)
        self.requests = []
        self.clock = Clock()
        topics = {name: SimpleNamespace(name=name, topic_id=topic_id) for name, topic_id in IDS.items()}
        self.services = SimpleNamespace(
            slices=Slices(self.clock, self.clock.seconds, 0.0),
            metadata=SimpleNamespace(
                topics=topics,
                topics_by_id={one.topic_id: one for one in topics.values()},
                partition=lambda name, index: object() if name in topics and index == 0 else None,
            ),
            random_source=random.Random(1),
        )
        self.context = RequestContext("127.0.0.1", "PLAINTEXT")
        self.context.api_version = version
        row = next(row for row in APIS.values() if row.name == api)

        def handle(services, context, request):
            self.requests.append(request)
            return respond(request)

        self._handle = AuthorizationStage(self.authorizer)(row, version, handle)

    def ask(self, request):
        """Return the response, after all slices that it needs."""
        answer = self._handle(self.services, self.context, request)
        if not isinstance(answer, Deferred):
            return answer
        outcome: list[Any] = []
        answer.addBoth(outcome.append)
        while not outcome:
            self.clock.advance(0)
        return outcome[0]
