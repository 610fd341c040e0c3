import threading

import pytest

from odradek.tools.console.cluster_pool import (
    CACHE_S,
    MOST_CONCURRENT,
    MOST_SEARCHES,
    STALE_S,
    BusyError,
    Cache,
    ClusterPool,
)
from odradek.tools.kafka.cluster import RequestError
from odradek.tools.kafka.connection.connection_errors import NoResponseError


class FakeCluster:
    def __init__(self):
        self.is_closed = False

    def close(self):
        self.is_closed = True


class Fixture:
    def __init__(self, busy_after_s=0.0):
        self.now = 0.0
        self.made = []
        self.pool = ClusterPool(self.make, lambda: self.now, busy_after_s)

    def make(self):
        self.made.append(FakeCluster())
        return self.made[-1]


def test_connections_are_used_again_for_a_minute():
    it = Fixture()
    it.pool.run(lambda cluster: None)
    [first] = it.made
    it.pool.run(lambda cluster: None)
    assert it.made == [first]
    it.now = 61.0
    it.pool.run(lambda cluster: None)
    assert len(it.made) == 2 and first.is_closed


def test_a_read_is_repeated_with_a_new_connection_only_if_an_old_one_failed():
    it = Fixture()
    used = []

    def work(cluster):
        used.append(cluster)
        if len(used) == 2:
            raise NoResponseError("closed")
        return "done"

    assert it.pool.run(work) == "done"
    assert it.pool.run(work) == "done"
    assert len(used) == 3 and used[0] is used[1] is not used[2] and used[0].is_closed

    def fail(cluster):
        used.append(cluster)
        raise NoResponseError("closed")

    used.clear()
    with pytest.raises(NoResponseError):
        it.pool.run(fail, is_change=True)
    assert len(used) == 1


def test_a_refused_request_keeps_the_connection():
    it = Fixture()

    def refuse(cluster):
        raise RequestError("INVALID_CONFIG", "no")

    with pytest.raises(RequestError):
        it.pool.run(refuse)
    it.pool.run(lambda cluster: cluster)
    assert len(it.made) == 1 and not it.made[0].is_closed


def test_connections_of_changes_do_not_accumulate():
    it = Fixture()
    for _ in range(3 * MOST_CONCURRENT):
        it.pool.run(lambda cluster: None, is_change=True)
    assert sum(not cluster.is_closed for cluster in it.made) == MOST_CONCURRENT


def test_work_is_bounded():
    it = Fixture()
    entered, leave = threading.Barrier(MOST_CONCURRENT + 1), threading.Event()

    def wait(cluster):
        entered.wait()
        leave.wait()

    threads = [threading.Thread(target=it.pool.run, args=(wait,)) for _ in range(MOST_CONCURRENT)]
    for thread in threads:
        thread.start()
    entered.wait()
    with pytest.raises(BusyError):
        it.pool.run(lambda cluster: None)
    leave.set()
    for thread in threads:
        thread.join()
    it.pool.run(lambda cluster: None)


def test_searches_use_half_of_the_connections():
    it = Fixture(busy_after_s=60.0)
    running, leave = threading.Semaphore(0), threading.Event()

    def wait(cluster):
        running.release()
        leave.wait()

    def search():
        try:
            it.pool.search(wait)
        except BusyError:
            refused.release()

    refused = threading.Semaphore(0)
    threads = [threading.Thread(target=search) for _ in range(4 * MOST_SEARCHES)]
    for thread in threads:
        thread.start()
    # Three run, six wait, and three are refused.
    for _ in range(MOST_SEARCHES):
        running.acquire()
        refused.acquire()
    assert it.pool.run(lambda cluster: "done") == "done"
    assert not running.acquire(blocking=False)
    leave.set()
    for thread in threads:
        thread.join()
    assert it.pool.search(lambda cluster: "done") == "done"


def test_results_are_cached_for_some_seconds_and_errors_for_one():
    now = [0.0]
    cache = Cache(lambda: now[0])
    results = iter(range(10))
    assert [cache.get("key", lambda: next(results)) for _ in range(3)] == [0, 0, 0]
    now[0] += CACHE_S
    assert cache.get("key", lambda: next(results)) == 1
    cache.clear()
    assert cache.get("key", lambda: next(results)) == 2
    calls = []

    def fail():
        calls.append(now[0])
        raise NoResponseError("down")

    for _ in range(3):
        with pytest.raises(NoResponseError):
            cache.get("other", fail)
    assert len(calls) == 1
    now[0] += 1.0
    assert cache.get("other", lambda: "up") == "up"


class SlowLoads:
    """Loads that take a second of a clock, and wait for `finish` in other threads than that of the test."""

    def __init__(self):
        self.now = 0.0
        self.cache = Cache(lambda: self.now)
        self.finish = threading.Semaphore(0)
        self.count = 0
        self.error = None
        self.took_s = 1.0

    def get(self):
        return self.cache.get("key", self.load, CACHE_S, STALE_S)

    def load(self):
        if threading.current_thread() is not threading.main_thread():
            self.finish.acquire()
        self.now += self.took_s
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.count

    def finish_reload(self):
        self.finish.release()
        [thread] = [one for one in threading.enumerate() if one.name == "reload"]
        thread.join()


def test_callers_do_not_wait_for_a_slow_load_again():
    it = SlowLoads()
    assert it.get() == 1
    it.now += CACHE_S
    assert [it.get(), it.get()] == [1, 1]
    it.finish_reload()
    assert (it.get(), it.count) == (2, 2)
    it.now += CACHE_S + STALE_S
    assert it.get() == 3


def test_callers_wait_for_a_quick_load():
    it = SlowLoads()
    it.took_s = 0.0
    assert it.get() == 1
    it.now += CACHE_S
    assert it.get() == 2


@pytest.mark.parametrize("error", [NoResponseError("down"), RequestError("UNSUPPORTED", "no")])
def test_a_failed_reload_is_reported(error):
    it = SlowLoads()
    it.get()
    it.now += CACHE_S
    it.error = error
    assert it.get() == 1
    it.finish_reload()
    it.now += STALE_S
    with pytest.raises(type(error)):
        it.get()
    it.error = None
    it.now += 1.0
    assert it.get() == 4


def test_callers_do_not_wait_long_for_another_one():
    cache = Cache(lambda: 0.0, busy_after_s=0.0)
    loading, finish = threading.Event(), threading.Event()

    def load():
        loading.set()
        finish.wait()

    thread = threading.Thread(target=lambda: cache.get("key", load))
    thread.start()
    loading.wait()
    with pytest.raises(BusyError):
        cache.get("key", lambda: None)
    assert cache.get("other", lambda: "loaded") == "loaded"
    finish.set()
    thread.join()


def test_concurrent_callers_wait_for_the_first_one():
    cache = Cache(lambda: 0.0, busy_after_s=60.0)
    loading, finish = threading.Event(), threading.Event()
    calls, results = [], []

    def load():
        calls.append(1)
        loading.set()
        finish.wait()
        return "loaded"

    threads = [threading.Thread(target=lambda: results.append(cache.get("key", load))) for _ in range(3)]
    threads[0].start()
    loading.wait()
    for thread in threads[1:]:
        thread.start()
    finish.set()
    for thread in threads:
        thread.join()
    assert (results, len(calls)) == (["loaded"] * 3, 1)
