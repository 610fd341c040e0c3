"""Base class of the processes that tests and tools start and stop."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class ManagedProcess(ABC):
    """A process, or several, started on entering the context and closed on leaving it, or if the start fails."""

    @abstractmethod
    def start(self) -> Self:
        """Start; return when clients are served."""

    @abstractmethod
    def close(self) -> None:
        """End what runs, and remove temporary files."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
