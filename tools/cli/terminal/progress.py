"""A progress bar for long work, on standard error if that is a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_progress(
    description: str, total: int | None, *, is_wanted: bool = True, are_bytes: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done. Yields the function that is called with the amount since the last call.

    total: None if it is unknown; the time that has passed is then shown in place of the time that remains
    are_bytes: the amounts are bytes, and not a number of items
    """
    if not (is_wanted and sys.stderr.isatty()):
        yield lambda amount: None
        return
    # Imported here because most commands show no progress, and the import takes some 50 ms.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts = (DownloadColumn(), TransferSpeedColumn()) if are_bytes else (MofNCompleteColumn(),)
    time = TimeElapsedColumn() if total is None else TimeRemainingColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, time)
    # Lines of standard output on the same terminal appear above the bar; a file must not get the bar's codes.
    is_redirected = sys.stdout.isatty()
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=is_redirected, redirect_stderr=False
    ) as progress:
        task = progress.add_task(description, total=total)
        yield lambda amount: progress.advance(task, amount)
