"""Concurrent blocking calls, for start and stop."""

from collections.abc import Callable, Sequence
from threading import Thread


def run_all(actions: Sequence[Callable[[], None]], thread_count: int) -> None:
    """Run all actions, in up to `thread_count` threads, or in the calling thread if that is 1.

    A thread ends with the first action that raises; when all threads have ended, the first exception is raised here.
    """
    if thread_count <= 1 or len(actions) <= 1:
        for action in actions:
            action()
        return
    # A list iterator is safe to share: it returns each item to one thread only.
    remaining = iter(actions)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for action in remaining:
                action()
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work, daemon=True) for _ in range(min(thread_count, len(actions)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
