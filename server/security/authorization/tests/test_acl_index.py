"""The index decides as Kafka's rules do, also after its ACLs have changed."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from odradek.protocol.access_control import Operation, PatternType, Permission, ResourceType
from odradek.replication.metadata.acls.bindings import AclBinding, AclEntry, ResourcePattern
from odradek.server.security.authorization.acl_index import AclIndex
from odradek.server.security.authorization.tests.rule_sets import (
    HOSTS,
    NAMES,
    OPERATIONS,
    PRINCIPALS,
    TYPES,
    all_questions,
    decide_naively,
    random_binding,
)

ENTRIES = st.builds(
    AclEntry,
    st.sampled_from((*PRINCIPALS, "User:*")),
    st.sampled_from((*HOSTS, "*")),
    st.sampled_from((*OPERATIONS, Operation.ALL)),
    st.sampled_from((Permission.ALLOW, Permission.DENY)),
)
PATTERNS = st.builds(
    ResourcePattern,
    st.sampled_from(TYPES),
    st.sampled_from(NAMES),
    st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
)
TABLES = st.dictionaries(PATTERNS, st.frozensets(ENTRIES, max_size=3), max_size=5)


def decide(index, question):
    if question.name is None:
        return index.decide_any(*question[:-1])
    return index.decide(*question)


def bindings_of(table):
    return {AclBinding(pattern, entry) for pattern, entries in table.items() for entry in entries}


@settings(max_examples=150, deadline=None)
@given(st.lists(TABLES, min_size=1, max_size=4), st.booleans())
def test_decisions_are_those_of_kafkas_rules_after_each_change(tables, allows_without_acl):
    index, expected = AclIndex(allows_without_acl=allows_without_acl), {}
    for table in tables:
        index.update(table)
        expected.update(table)
        bindings = bindings_of(expected)
        for question in all_questions():
            decision = decide(index, question)
            assert decision.is_allowed == decide_naively(bindings, question, allows_without_acl=allows_without_acl)
            if decision.rule is not None:
                assert decision.rule in bindings
                assert (decision.rule.entry.permission is Permission.ALLOW) == decision.is_allowed


def test_large_rule_sets_decide_as_kafkas_rules():
    source = random.Random(7)
    for size in (20, 60, 200):
        bindings = {random_binding(source) for _ in range(size)}
        index = AclIndex(allows_without_acl=False)
        table = {}
        for pattern, entry in bindings:
            table.setdefault(pattern, set()).add(entry)
        index.update({pattern: frozenset(entries) for pattern, entries in table.items()})
        for question in all_questions():
            naive = decide_naively(bindings, question, allows_without_acl=False)
            assert decide(index, question).is_allowed == naive, question


def test_an_index_without_acls_is_empty_again():
    index = AclIndex(allows_without_acl=False)
    source = random.Random(3)
    table = {}
    for pattern, entry in (random_binding(source) for _ in range(100)):
        table.setdefault(pattern, set()).add(entry)
    index.update({pattern: frozenset(entries) for pattern, entries in table.items()})
    index.update(dict.fromkeys(table, frozenset()))
    assert not index._entries and not index._literal and not index._prefixed and not index._patterns_of
    assert not any(index._lengths.values())
    assert index.decide("User:a", "::1", Operation.READ, ResourceType.TOPIC, "t").reason == "no ACL"


def test_a_decision_names_its_rule():
    index = AclIndex(allows_without_acl=False)
    deny = AclEntry("User:*", "10.0.0.1", Operation.ALL, Permission.DENY)
    index.update({ResourcePattern(ResourceType.TOPIC, "te", PatternType.PREFIXED): frozenset({deny})})
    decision = index.decide("User:a", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "test")
    assert str(decision) == "DENY All for User:* from 10.0.0.1 on Topic:PREFIXED:te"
    assert index.decide("User:a", "::1", Operation.READ, ResourceType.TOPIC, "test").reason == "no matching ACL"
