"""Decisions of the built-in authorizer, compared with those of Apache Kafka's on the same rule sets."""

import random
import subprocess
from pathlib import Path

import pytest

from compat_tests import limits, processes
from compat_tests.apache_kafka.jars import java, kafka_classpath
from odradek.server.security.authorization.acl_index import AclIndex, Decision
from odradek.server.security.authorization.tests.rule_sets import Question, all_questions, random_binding

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("kafka_jars")]

PROGRAM = Path(__file__).parents[1] / "apache_kafka" / "AuthorizerDecisions.java"
RULE_SETS = 80
SIZES = (1, 2, 3, 5, 8, 13, 40)


def test_decisions_are_those_of_apache_kafka():
    source = random.Random(11)
    lines, expected = [], []
    for number in range(RULE_SETS):
        allows_without_acl = number % 4 == 0
        lines.append(f"set\tUser:root\t{str(allows_without_acl).lower()}")
        bindings = {random_binding(source) for _ in range(source.choice(SIZES))}
        index, table = AclIndex(allows_without_acl=allows_without_acl), {}
        for pattern, entry in sorted(bindings):
            table.setdefault(pattern, set()).add(entry)
            words = (pattern.resource_type.name, pattern.name, pattern.pattern_type.name)
            rule = (entry.principal, entry.host, entry.operation.name, entry.permission.name)
            lines.append("\t".join(("acl", *words, *rule)))
        index.update({pattern: frozenset(entries) for pattern, entries in table.items()})
        for question in all_questions():
            lines.append(format_question(question))
            decision = decide(index, question)
            expected.append((number, question, decision.is_allowed))
    decisions = run_kafkas_authorizer(lines)
    assert len(decisions) == len(expected) > RULE_SETS * 400
    different = [one for one, allowed in zip(expected, decisions, strict=True) if one[2] != allowed]
    assert different == []
    assert {True, False} == set(decisions)


def decide(index: AclIndex, question: Question) -> Decision:
    principal, host, operation, resource_type, name = question
    if name is None:
        return index.decide_any(principal, host, operation, resource_type)
    return index.decide(principal, host, operation, resource_type, name)


def format_question(question: Question) -> str:
    kind = "any" if question.name is None else "ask"
    words = (kind, question.principal, question.host, question.operation.name, question.resource_type.name)
    return "\t".join((*words, *([] if question.name is None else [question.name])))


def run_kafkas_authorizer(lines: list[str]) -> list[bool]:
    """Return the decisions of Apache Kafka's authorizer."""
    command = [java(), "-Xmx256m", "-cp", kafka_classpath(), str(PROGRAM)]
    process = processes.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        stdout, stderr = process.communicate("\n".join(lines), timeout=2 * limits.TOOL_S)
    finally:
        process.kill()
        process.wait()
    answers = [line for line in stdout.splitlines() if line in ("ALLOWED", "DENIED")]
    assert process.returncode == 0, stderr
    return [answer == "ALLOWED" for answer in answers]
