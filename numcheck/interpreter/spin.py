"""A budget for waiting: programs run one after another, so one that waits for another would wait for ever."""

from __future__ import annotations

from typing import Any

from numcheck.errors import NumcheckError

# Reads in a row, within one program, that all repeat earlier ones with the same result, with no write between.
# A reduction that reloads one scalar stays far below it (a read costs about 0.1 ms); a wait reaches it in a second.
IDLE_READS = 10_000
# Reads and writes of one program whatever they return: a loop whose atomics change what it waits for (a livelock).
MEMORY_OPERATIONS = 1_000_000


class Waits(NumcheckError, RuntimeError):
    """A kernel that waits for another program (a lock, a turn, a barrier), so that it hangs on program order."""


class Patience:
    """Counts what one program does to memory, and loses patience with one that only waits."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._idle = 0
        self._operations = 0

    def start(self) -> None:
        """A program starts."""
        self._seen.clear()
        self._idle = 0
        self._operations = 0

    def wrote(self) -> None:
        """The program stored something, so it does not only wait."""
        self._seen.clear()
        self._idle = 0
        self._count()

    def read(self, operation: str, pointers: Any, result: Any) -> None:
        """The program read `result` at `pointers`; raises Waits when it has only repeated itself for too long."""
        self._count()
        if pointers.size == 0:
            return
        first, last = pointers.flat[0], pointers.flat[-1]
        signature = hash((operation, int(first), int(last), pointers.size, result.tobytes()))
        if signature not in self._seen:
            self._seen.add(signature)
            self._idle = 0
            return
        self._idle += 1
        if self._idle >= IDLE_READS:
            raise Waits(
                f"waits for another program: {IDLE_READS} {operation}s in a row at address {int(first):#x} that "
                "changed nothing. Programs run one after another here and in no promised order on a device, so a lock, "
                "a turn or a barrier between programs is no order; launch twice, or sum slots in a fixed order"
            )

    def _count(self) -> None:
        self._operations += 1
        if self._operations >= MEMORY_OPERATIONS:
            raise Waits(
                f"one program touched memory {MEMORY_OPERATIONS} times and has not ended; it waits for something that "
                "another program has to do, or the Case is too large for the interpreter"
            )
