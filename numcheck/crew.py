"""Crew: processes that score suspects side by side, told what to do and answering in lines of JSON.

Each worker makes the same list of suspects for itself and is sent numbers from it, a batch at a time. One that dies
leaves behind which Case of which suspect it was judging. Another worker judges that suspect again, from its start: a
second death on the same Case is the suspect's, which is killed by it. Where processes die on one Case after another,
or where the judging itself raises, the fault is not shown to be the suspect's: it kills nothing, and the run ends.

A worker ends by itself what does not end, and starts anew. One that cannot, because the code never comes back to
Python or swallows what would end it, is ended from here a little later, and the suspect has HUNG.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from numcheck.case import Case
from numcheck.errors import NumcheckError
from numcheck.score import Scorer
from numcheck.suspect import Score, Suspect, hung

# Suspects of a function that one worker scores in a row: enough that they teach each other, few enough to share out.
BATCH = 16
# Deaths on one Case that make it the suspect's doing; an outside hand (memory that other work has taken) strikes once.
DEADLY = 2
# Deaths over one suspect after which nobody is asked again.
HOPELESS = 4
# Seconds after the time is up for a worker to say so itself, and what else it knows: it is a line of Python away.
GRACE = 10.0
# Seconds between two looks at who is late: few beside what a Case may take.
LOOK = 0.2
# Seconds for what has been killed to be gone.
REAPED = 5.0
Row = dict[str, Any]


class WorkerLost(NumcheckError, RuntimeError):
    """A worker that ended before it had scored anything, or whose judging raised: another would end the same way.

    Also workers that ended over one suspect time and again, each on another Case.
    """


def batches(suspects: Sequence[Suspect]) -> list[list[int]]:
    """Numbers of the suspects, together by unit and at most BATCH of them.

    What a suspect scores depends on its batch alone, so that it is the same with any number of workers.
    """
    found: list[list[int]] = []
    for number, suspect in enumerate(suspects):
        last = found[-1] if found else []
        if last and suspects[last[0]].unit == suspect.unit and len(last) < BATCH:
            last.append(number)
        else:
            found.append([number])
    return found


def serve(suspects: Sequence[Suspect], scorer: Scorer, asked: TextIO, told: TextIO, alive: Callable[[], bool]) -> None:
    """A worker: a line with numbers comes in, for each its "at" lines and one "score" line go out, then "done".

    A "limit" line says how many seconds what comes next may take, and 0.0 that it has ended. A process that has cut
    off what did not end ends itself: nobody knows what that was in the midst of.

    alive: whether this process can still judge; a device that a mutant has left in error cannot.
    """

    def tell(**said: Any) -> None:
        told.write(json.dumps(said) + "\n")
        told.flush()

    scorer.limit = lambda seconds, doing: tell(limit=seconds, doing=doing)
    for line in asked:
        scorer.killers.clear()
        for number in json.loads(line):
            scorer.at = lambda law, case, number=number: tell(at=number, law=law, case=case.to_json())  # type: ignore[misc]
            tell(at=number)
            try:
                tell(score=number, row=scorer.score(suspects[number]).to_json())
            except Exception:
                # What a device in error raises is the suspect's doing, and the process ends by it.
                if alive():
                    tell(broke=traceback.format_exc())
                raise
            if scorer.torn or not alive():
                return
        tell(done=True)


@dataclass
class _Worker:
    """One process and what it is doing."""

    process: subprocess.Popen[str]
    left: list[int] = field(default_factory=list)
    at: Row = field(default_factory=dict)
    begun: bool = False
    doing: str = ""
    limit: float = 0.0
    until: float = math.inf
    late: float = 0.0
    ended: bool = False

    @classmethod
    def start(cls, command: Sequence[str]) -> _Worker:
        """A new process, in a session of its own: Ctrl-C is for this process alone, which then ends it."""
        return cls(subprocess.Popen(command, stdin=-1, stdout=-1, text=True, start_new_session=True))

    def may_take(self, seconds: float, doing: str) -> None:
        """Start the clock for what it is about to do, or stop it at 0.0."""
        self.limit, self.doing = seconds, doing
        self.until = time.monotonic() + seconds + GRACE if seconds else math.inf

    def look(self) -> None:
        """End it where its time is up. Seen twice, so that a stop of this process itself makes nobody late."""
        until = self.until
        if time.monotonic() < until:
            return
        if self.late == until:
            self.ended = True
            self.end()
        self.late = until

    def end(self) -> None:
        """End it at once, with all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def send(self, batch: list[int]) -> None:
        """Ask for a batch."""
        assert self.process.stdin is not None
        self.left = list(batch)
        self.process.stdin.write(json.dumps(batch) + "\n")
        self.process.stdin.flush()


def score_apart(suspects: Sequence[Suspect], command: Sequence[str], workers: int) -> Generator[Row, None, None]:
    """Score all in `workers` processes that `command` starts; each row as it comes. None of them outlives this.

    Raises WorkerLost where a process ends without having been able to score anything, or where its judging raises.
    """
    waiting = batches(suspects)
    rows: queue.Queue[Row | BaseException | None] = queue.Queue()
    lock = threading.Lock()
    crew: list[_Worker] = []
    over = threading.Event()

    def started() -> _Worker:
        with lock:
            if over.is_set():
                raise WorkerLost("there is nobody left to score for")
            crew[:] = [worker for worker in crew if worker.process.poll() is None]
            crew.append(_Worker.start(command))
            return crew[-1]

    def watch() -> None:
        while not over.wait(LOOK):
            with lock:
                for worker in crew:
                    if worker.process.poll() is None:
                        worker.look()

    def work() -> None:
        worker = None
        try:
            while True:
                with lock:
                    batch = waiting.pop(0) if waiting else []
                deaths: list[Row] = []
                while batch:
                    worker = worker or started()
                    for row in _answers(worker, batch, suspects, deaths):
                        rows.put(row)
                    batch = worker.left
                    worker = None if batch or worker.process.poll() is not None else worker
                if not waiting:
                    break
        except BaseException as error:
            rows.put(error)
        finally:
            if worker is not None and worker.process.stdin is not None:
                worker.process.stdin.close()
                worker.process.wait()
            rows.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(workers, len(waiting)))]
    try:
        for thread in (*threads, threading.Thread(target=watch, daemon=True)):
            thread.start()
        for _ in threads:
            while (row := rows.get()) is not None:
                if isinstance(row, BaseException):
                    raise row
                yield row
    finally:
        with lock:
            over.set()
            for worker in crew:
                if worker.process.poll() is None:
                    worker.end()
        for thread in threads:
            if thread.is_alive():
                thread.join(REAPED)


def _answers(worker: _Worker, batch: list[int], suspects: Sequence[Suspect], deaths: list[Row]) -> Iterator[Row]:
    """The rows of a batch. What is not answered stays in `worker.left`; `deaths` has where processes ended over it."""
    assert worker.process.stdout is not None
    worker.send(batch)
    for line in worker.process.stdout:
        said = json.loads(line)
        if "limit" in said:
            worker.may_take(said["limit"], said["doing"])
        elif "score" in said:
            worker.left.remove(said["score"])
            yield said["row"]
        elif "at" in said:
            worker.at, worker.begun = said, worker.begun or "law" in said
        elif "broke" in said:
            name = suspects[worker.at["at"]].id
            raise WorkerLost(
                f"numcheck itself failed at {name}, which is neither killed nor survived:\n{said['broke']}"
            )
        elif "done" in said:
            return
    code = worker.process.wait()
    if worker.ended and worker.limit and worker.at["at"] in worker.left:
        worker.left.remove(worker.at["at"])
        yield _hung(suspects[worker.at["at"]], worker).to_json()
        return
    if "law" not in worker.at or worker.at["at"] not in worker.left:
        if not worker.begun:
            why = f"a worker ended with exit code {code} before it had judged anything"
            raise WorkerLost(f"{why}; what it said itself stands above")
        return
    deaths.append(worker.at)
    suspect = suspects[worker.at["at"]]
    if deaths.count(worker.at) >= DEADLY:
        worker.left.remove(worker.at["at"])
        yield _died(suspect, worker.at, code).to_json()
    elif sum(death["at"] == worker.at["at"] for death in deaths) >= HOPELESS:
        raise WorkerLost(
            f"{HOPELESS} processes ended while they judged {suspect.id}, the last with exit code {code}, and no two on "
            "one Case: that is no kill; see whether memory is short, or run with fewer --workers"
        )


def _hung(suspect: Suspect, worker: _Worker) -> Score:
    case = Case.from_json(worker.at["case"]) if "case" in worker.at else None
    return hung(suspect, worker.doing, worker.limit, case)


def _died(suspect: Suspect, at: Row, code: int) -> Score:
    why = f"the process ended in the midst of it, with exit code {code}, each of {DEADLY} times"
    return Score(suspect, "KILLED", at["law"], Case.from_json(at["case"]), why, raised=True)
