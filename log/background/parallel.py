"""Many blocking calls at once, for start and stop."""

from collections.abc import Callable, Sequence
from threading import Thread


def run_all(actions: Sequence[Callable[[], None]], thread_count: int) -> None:
    """Run all, in up to `thread_count` threads; in this one alone if that is 1.

    An action that raises ends its thread's part; the first exception is raised here when all threads are through.
    """
    if thread_count <= 1 or len(actions) <= 1:
        for action in actions:
            action()
        return
    # A list iterator gives each of its items to one thread only.
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
