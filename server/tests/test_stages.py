"""Optional stages of the request pipeline, which run in order before the handler."""

from types import SimpleNamespace

import pytest
from twisted.internet.task import Clock

from odradek.protocol.errors import ErrorCode, KafkaError
from odradek.protocol.headers import api_code
from odradek.protocol.messages.heartbeat import HeartbeatResponse
from odradek.server.apis import APIS, PRODUCE_KEY, Api
from odradek.server.dispatch import Dispatch
from odradek.server.handlers import api_versions as any_handler_module
from odradek.server.handlers.records.produce import produce
from odradek.server.network.connection import Connection
from odradek.server.network.tests.test_connection import Transport, frame
from odradek.server.request import CloseConnection, RequestContext
from odradek.server.work.slices import Slices

HEARTBEAT_KEY = 12


@pytest.fixture
def setting(monkeypatch):
    calls = []

    def handler(services, context, request):
        calls.append("handler")
        return HeartbeatResponse()

    monkeypatch.setattr(any_handler_module, "sample", handler, raising=False)
    monkeypatch.setattr(
        any_handler_module,
        "sample_error",
        lambda request, version, error: HeartbeatResponse(error_code=error.code),
        raising=False,
    )
    clock = Clock()
    services = SimpleNamespace(slices=Slices(clock, clock.seconds))
    apis = {HEARTBEAT_KEY: Api(HEARTBEAT_KEY, "Heartbeat", 0, 4, "api_versions:sample")}

    def connect(stages):
        transport = Transport()
        context = RequestContext("host", "PLAINTEXT")
        return transport, Connection(transport, Dispatch(services, apis, stages), context)

    return calls, connect


def noting(calls, name, error=None):
    """A stage that records its calls, and raises `error` instead of the call of the handler."""

    def stage(api, version, handler):
        def wrapped(services, context, request):
            calls.append((name, api.name, version, request.group_id))
            if error is not None:
                raise error
            return handler(services, context, request)

        return wrapped

    return stage


def skip(api, version, handler):
    return handler


def ask(transport, connection):
    connection.frames_received([frame(1)])
    transport.iterate()
    return transport.answers()


def test_the_stages_run_in_order_before_the_handler(setting):
    calls, connect = setting
    assert ask(*connect((noting(calls, "authorize"), noting(calls, "quota")))) == [(1, 0)]
    assert calls == [("authorize", "Heartbeat", 1, "g"), ("quota", "Heartbeat", 1, "g"), "handler"]


def test_a_refusal_prevents_later_stages_and_the_handler(setting):
    calls, connect = setting
    error = KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    answers = ask(*connect((noting(calls, "authorize", error), noting(calls, "quota"))))
    assert answers == [(1, ErrorCode.GROUP_AUTHORIZATION_FAILED)]
    assert [name for name, *_ in calls] == ["authorize"]


def test_a_stage_may_close_the_connection(setting):
    calls, connect = setting
    transport, connection = connect((noting(calls, "authorize", CloseConnection("unknown client")),))
    assert ask(transport, connection) == []
    assert transport.closed
    assert "handler" not in calls


def test_a_version_that_needs_no_stage_has_none(setting):
    calls, connect = setting
    assert ask(*connect((skip,))) == [(1, 0)]
    assert calls == ["handler"]


def test_without_stages_the_handler_is_called_directly_and_has_a_fast_path():
    for stages in ((), (skip,)):
        api = Dispatch(SimpleNamespace(), stages=stages).find(api_code(PRODUCE_KEY, APIS[PRODUCE_KEY].last_version))
        assert api.handle is produce
        assert api.allows_fast_path


def test_a_stage_disables_the_fast_path():
    stages = (noting([], "authorize"),)
    api = Dispatch(SimpleNamespace(), stages=stages).find(api_code(PRODUCE_KEY, APIS[PRODUCE_KEY].last_version))
    assert api.handle is not produce
    assert not api.allows_fast_path
