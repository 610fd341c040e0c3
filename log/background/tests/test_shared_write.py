"""Shared writes: every caller is called back once, whichever step fails."""

import pytest

from odradek.log.background.shared_write import SharedWrite
from odradek.protocol.errors import ErrorCode, KafkaError

DEFECT, REFUSED = RuntimeError("a defect"), KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)


class Writes:
    """A SharedWrite whose steps fail on a test's command."""

    def __init__(self):
        self.prepare_error = self.ended_error = None
        self.under_way = []
        self.idle_count = 0
        self.answers = []
        self.shared = SharedWrite(self._prepare, self._run_in_thread, self._ended, self._idle)

    def _prepare(self):
        if self.prepare_error is not None:
            raise self.prepare_error
        return len

    def _run_in_thread(self, write, done):
        self.under_way.append(done)

    def _ended(self, error):
        if self.ended_error is not None:
            raise self.ended_error
        return error

    def _idle(self):
        self.idle_count += 1

    def request(self, name):
        self.shared.request(lambda error: self.answers.append((name, error)))


@pytest.mark.parametrize("error", [REFUSED, DEFECT])
def test_a_write_that_cannot_be_prepared_is_answered(error):
    writes = Writes()
    writes.prepare_error = error
    writes.request("first")
    assert (writes.answers, writes.idle_count) == ([("first", error)], 1)
    writes.prepare_error = None
    writes.request("second")
    writes.under_way.pop()(None)
    assert (writes.answers[1:], writes.idle_count) == ([("second", None)], 2)


@pytest.mark.parametrize("error", [REFUSED, DEFECT])
def test_a_following_write_that_cannot_be_prepared_calls_back_each_caller(error):
    writes = Writes()
    writes.request("first")
    writes.request("second")
    writes.prepare_error = error
    writes.under_way.pop()(None)
    assert sorted(writes.answers) == [("first", None), ("second", error)]
    assert writes.idle_count == 1


def test_a_result_that_cannot_be_recorded_is_passed_to_each_caller():
    writes = Writes()
    writes.request("first")
    writes.request("second")
    writes.ended_error = DEFECT
    writes.under_way.pop()(None)
    assert writes.answers == [("first", DEFECT)]
    writes.ended_error = None
    writes.under_way.pop()(None)
    assert writes.answers[1:] == [("second", None)]
    assert writes.idle_count == 1


@pytest.mark.parametrize("error", [None, REFUSED])
def test_a_caller_that_fails_does_not_prevent_the_results_of_others(error, caplog):
    writes = Writes()

    def fail(error):
        raise DEFECT

    writes.request("first")
    writes.shared.request(fail)
    writes.request("second")
    writes.under_way.pop()(None)
    writes.prepare_error = error
    writes.under_way.pop()(error)
    assert writes.answers == [("first", None), ("second", error)]
    assert "please report it" in caplog.text
    assert writes.idle_count == 1
