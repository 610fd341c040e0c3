import pytest

from odradek.replication.metadata.memory_store import MemoryMetadataServer, MemoryMetadataStore
from odradek.replication.metadata.store import SessionEvent, WatchEvent, WatchKind, run_now
from odradek.replication.tests.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self):
        return MemoryMetadataStore()


def test_sessions_share_the_tree_and_expire_separately():
    server = MemoryMetadataServer()
    one, two = server.connect(), server.connect()
    run_now(one.create("/one", ephemeral=True))
    run_now(two.create("/two", ephemeral=True))
    seen, ended = [], []
    run_now(two.exists("/one", seen.append))
    one.add_session_listener(ended.append)
    server.expire(one)
    assert seen == [WatchEvent(WatchKind.DELETED, "/one")]
    assert ended == [SessionEvent.EXPIRED]
    assert run_now(two.get_children("/")) == ["two"]


def test_the_watches_of_an_expired_session_do_not_fire():
    server = MemoryMetadataServer()
    one, two = server.connect(), server.connect()
    seen = []
    run_now(one.exists("/a", seen.append))
    server.expire(one)
    run_now(two.create("/a"))
    assert seen == []


def test_run_now_refuses_a_coroutine_that_suspends():
    class Never:
        def __await__(self):
            yield

    async def wait():
        await Never()

    with pytest.raises(RuntimeError, match="suspended"):
        run_now(wait())


def test_a_renewed_session_is_new_and_has_no_watches():
    server = MemoryMetadataServer()
    one, two = server.connect(), server.connect()
    seen = []
    run_now(one.exists("/a", seen.append))
    run_now(one.create("/one", ephemeral=True))
    run_now(one.renew())
    assert run_now(two.exists("/one")) is not None, "the node of a live session is kept"
    first = one.session_id
    server.expire(one)
    run_now(one.renew())
    assert one.session_id not in (first, two.session_id)
    run_now(one.create("/one", ephemeral=True))
    assert run_now(two.exists("/one")).ephemeral_owner == one.session_id
    run_now(two.create("/a"))
    assert seen == []
