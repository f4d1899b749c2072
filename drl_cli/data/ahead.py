"""ReadAhead: reads the next part of a dataset in a thread, while its caller works on the present one."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadAhead(Generic[T]):
    """Calls `read(start, stop)`, which must depend on nothing else, before its result is needed.

    At most one call runs at a time, and one result is kept in memory. Reading spends its time in the operating system
    and in numpy, which run beside the trainer.
    """

    def __init__(self, read: Callable[[int, int], T]) -> None:
        self._read = read
        self._thread = ThreadPoolExecutor(1, "read ahead")
        self._next: tuple[tuple[int, int], Future[T]] | None = None

    def begin(self, start: int, stop: int) -> None:
        """Begin to read this part. `take` must have returned the part before."""
        assert self._next is None, "one part at a time"
        self._next = (start, stop), self._thread.submit(self._read, start, stop)

    def take(self, start: int, stop: int) -> T:
        """Return `read(start, stop)`, and raise its errors. A part that was begun and is not this one is dropped."""
        begun, self._next = self._next, None
        if begun is None:
            return self._read(start, stop)
        part, future = begun
        if part == (start, stop):
            return future.result()
        future.exception()  # wait: a dataset is read by one thread at a time
        return self._read(start, stop)

    def close(self) -> None:
        """Drop the part that was begun, and end the thread."""
        self._next = None
        self._thread.shutdown(cancel_futures=True)
