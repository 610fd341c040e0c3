"""Tests that every metadata store must pass; a subclass provides the store under test as the fixture `store`."""

import pytest

from odradek.replication.metadata.store import (
    BadVersionError,
    Check,
    Create,
    Delete,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    SetData,
    TransactionError,
    WatchEvent,
    WatchKind,
    run_now,
)


class StoreContract:
    def test_a_node_can_be_read_as_it_was_created(self, store):
        assert run_now(store.create("/a", b"one")) == "/a"
        node = run_now(store.get("/a"))
        assert node.data == b"one"
        assert (node.stat.version, node.stat.ephemeral_owner, node.stat.child_count) == (0, 0, 0)
        assert node.stat.created_id == node.stat.modified_id > 0

    def test_no_data_differs_from_empty_data(self, store):
        run_now(store.create("/null"))
        run_now(store.create("/empty", b""))
        assert run_now(store.get("/null")).data is None
        assert run_now(store.get("/empty")).data == b""

    def test_many_nodes_are_read_in_the_order_of_their_paths(self, store):
        run_now(store.create("/a", b"1"))
        run_now(store.create("/a/b"))
        run_now(store.create("/c", b""))
        nodes = run_now(store.get_many(["/c", "/none", "/a", "/a/b", "/c"]))
        assert [node and node.data for node in nodes] == [b"", None, b"1", None, b""]
        assert [node is None for node in nodes] == [False, True, False, False, False]
        assert nodes[2] == run_now(store.get("/a"))
        assert run_now(store.get_many([])) == []

    def test_each_of_many_nodes_is_watched(self, store):
        run_now(store.create("/a"))
        run_now(store.create("/b"))
        seen: list[WatchEvent] = []
        run_now(store.get_many(["/a", "/b", "/none"], seen.append))
        run_now(store.set("/b", b"1"))
        run_now(store.set("/b", b"2"))
        run_now(store.create("/none"))
        run_now(store.delete("/a"))
        assert seen == [WatchEvent(WatchKind.CHANGED, "/b"), WatchEvent(WatchKind.DELETED, "/a")]

    def test_create_refuses(self, store):
        run_now(store.create("/a"))
        run_now(store.create("/e", ephemeral=True))
        with pytest.raises(NodeExistsError):
            run_now(store.create("/a"))
        with pytest.raises(NoNodeError):
            run_now(store.create("/b/c"))
        with pytest.raises(NoChildrenForEphemeralsError):
            run_now(store.create("/e/c"))

    @pytest.mark.parametrize("path", ["", "a", "/a/", "//a", "/a//b", "/a/../b", "/."])
    def test_bad_paths_are_refused(self, store, path):
        with pytest.raises(ValueError, match="invalid node path"):
            run_now(store.create(path))
        run_now(store.create("/still-works"))

    def test_set_counts_versions_and_compares(self, store):
        run_now(store.create("/a", b"0"))
        first = run_now(store.set("/a", b"1", 0))
        assert first.version == 1
        with pytest.raises(BadVersionError):
            run_now(store.set("/a", b"lost", 0))
        assert run_now(store.set("/a", b"2")).version == 2
        node = run_now(store.get("/a"))
        assert node.data == b"2"
        assert node.stat.created_id < first.modified_id < node.stat.modified_id
        with pytest.raises(NoNodeError):
            run_now(store.set("/b", b""))

    def test_delete_compares_and_refuses_a_node_with_children(self, store):
        run_now(store.create("/a"))
        run_now(store.create("/a/b"))
        with pytest.raises(NotEmptyError):
            run_now(store.delete("/a"))
        with pytest.raises(BadVersionError):
            run_now(store.delete("/a/b", 7))
        run_now(store.delete("/a/b", 0))
        run_now(store.delete("/a"))
        assert run_now(store.exists("/a")) is None
        with pytest.raises(NoNodeError):
            run_now(store.delete("/a"))

    def test_children_are_names_in_order(self, store):
        run_now(store.create("/t"))
        for name in ("b", "a", "a-b", "10"):
            run_now(store.create(f"/t/{name}"))
        run_now(store.create("/t/a/deeper"))
        run_now(store.create("/tt"))
        assert run_now(store.get_children("/t")) == ["10", "a", "a-b", "b"]
        assert run_now(store.get_children("/")) == ["t", "tt"]
        assert run_now(store.get_children("/tt")) == []
        with pytest.raises(NoNodeError):
            run_now(store.get_children("/none"))

    def test_child_version_and_count(self, store):
        run_now(store.create("/a"))
        for name in "xyz":
            run_now(store.create(f"/a/{name}"))
        run_now(store.delete("/a/x"))
        stat = run_now(store.exists("/a"))
        assert (stat.child_count, stat.child_version, stat.version) == (2, 4, 0)

    def test_sequences_only_grow(self, store):
        run_now(store.create("/q"))
        assert run_now(store.create("/q/n_", sequential=True)) == "/q/n_0000000000"
        second = run_now(store.create("/q/n_", sequential=True))
        assert second == "/q/n_0000000001"
        run_now(store.delete(second))
        assert run_now(store.create("/q/n_", sequential=True)) == "/q/n_0000000002"

    def test_ensure_path(self, store):
        run_now(store.ensure_path("/a/b/c"))
        run_now(store.ensure_path("/a/b/c"))
        assert run_now(store.get_children("/a/b")) == ["c"]

    def test_a_transaction_does_all(self, store):
        results = run_now(
            store.transaction(
                [Create("/a"), Create("/a/b", b"1"), SetData("/a/b", b"2", 0), Check("/a", 0), Delete("/a/b", 1)]
            )
        )
        assert results[:2] == ["/a", "/a/b"]
        assert results[2].version == 1
        assert results[3:] == [None, None]
        assert run_now(store.get_children("/a")) == []

    def test_a_transaction_does_nothing_when_a_part_is_refused(self, store):
        run_now(store.create("/a", b"0"))
        before = run_now(store.get("/a"))
        seen: list[WatchEvent] = []
        run_now(store.get("/a", seen.append))
        operations = [SetData("/a", b"1"), Create("/a/b"), Delete("/a/b"), Create("/c"), Check("/a", 9)]
        with pytest.raises(TransactionError) as refused:
            run_now(store.transaction(operations))
        assert refused.value.index == 4
        assert isinstance(refused.value.cause, BadVersionError)
        assert run_now(store.get("/a")) == before
        assert run_now(store.get_children("/")) == ["a"]
        assert seen == []
        run_now(store.create("/a/after"))
        assert run_now(store.exists("/a")).child_version == 1

    def test_a_transaction_without_operations_does_nothing(self, store):
        assert run_now(store.transaction([])) == []
        assert run_now(store.get_children("/")) == []

    def test_watches_fire_once(self, store):
        seen: list[WatchEvent] = []
        run_now(store.exists("/a", seen.append))
        run_now(store.create("/a"))
        run_now(store.set("/a", b"unwatched"))
        assert seen == [WatchEvent(WatchKind.CREATED, "/a")]
        run_now(store.get("/a", seen.append))
        run_now(store.set("/a", b"1"))
        run_now(store.set("/a", b"2"))
        assert seen[1:] == [WatchEvent(WatchKind.CHANGED, "/a")]

    def test_watches_on_children_and_deletion(self, store):
        run_now(store.create("/a"))
        seen: list[WatchEvent] = []
        run_now(store.get_children("/a", seen.append))
        run_now(store.set("/a", b"not a matter of children"))
        run_now(store.create("/a/b"))
        assert seen == [WatchEvent(WatchKind.CHILDREN, "/a")]
        run_now(store.delete("/a/b"))
        run_now(store.get_children("/a", seen.append))
        run_now(store.get("/a", seen.append))
        run_now(store.delete("/a"))
        assert seen[1:] == [WatchEvent(WatchKind.DELETED, "/a")]

    def test_when_a_watch_fires_its_change_can_be_read(self, store):
        run_now(store.create("/a", b"old"))
        read = []
        run_now(store.get("/a", lambda event: read.append(run_now(store.get(event.path)).data)))
        run_now(store.set("/a", b"new"))
        assert read == [b"new"]

    def test_an_ended_session_refuses_operations(self, store):
        run_now(store.create("/a"))
        run_now(store.close())
        run_now(store.close())
        with pytest.raises(SessionExpiredError):
            run_now(store.create("/b"))
        with pytest.raises(SessionExpiredError):
            run_now(store.get("/a"))
