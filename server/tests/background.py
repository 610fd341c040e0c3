"""Threads and long work on a `Clock`, for tests of the parts that use them."""

from odradek.log.background.tasks import run_inline
from odradek.server.fetching.purgatory import CompletionQueue
from odradek.server.work.slices import Slices


def background(clock, slice_s=1.0):
    """Arguments of a coordinator runtime: a thread's work is done in the next iteration, long work at once.

    With `slice_s=0` each step of long work takes an iteration of its own.
    """
    return {
        "slices": Slices(clock, clock.seconds, slice_s),
        "run_in_thread": lambda work, done: clock.callLater(0, run_inline, work, done),
    }


def completions(clock):
    """A queue that completes waiting requests, at once as long as the clock does not advance meanwhile."""
    return CompletionQueue(Slices(clock, clock.seconds))


def run_iteration(clock):
    """Run one reactor iteration: make the calls that are due. Return whether there were any."""
    due = [call for call in clock.getDelayedCalls() if call.getTime() <= clock.seconds()]
    for call in due:
        if call.active():
            clock.calls.remove(call)
            call.called = 1
            call.func(*call.args, **call.kw)
    return bool(due)
