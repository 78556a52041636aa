"""Crew: processes that score suspects side by side, told what to do and answering in lines of JSON.

Each worker makes the same list of suspects for itself and is sent numbers from it, a batch at a time. One that dies
leaves behind which Case of which suspect it was judging. Another worker judges that suspect again, from its start: a
second death on the same Case is the suspect's, which is killed by it. Where processes die on one Case after another,
or where the judging itself raises, the fault is not shown to be the suspect's: it kills nothing, and the run ends.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from numcheck.case import Case
from numcheck.errors import NumcheckError
from numcheck.score import Scorer
from numcheck.suspect import Score, Suspect

# Suspects of a function that one worker scores in a row: enough that they teach each other, few enough to share out.
BATCH = 16
# Deaths on one Case that make it the suspect's doing; an outside hand (memory that other work has taken) strikes once.
DEADLY = 2
# Deaths over one suspect after which nobody is asked again.
HOPELESS = 4
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


def score_here(suspects: Sequence[Suspect], scorer: Scorer) -> Iterator[Row]:
    """Score all in this process, batch by batch."""
    for batch in batches(suspects):
        scorer.killers.clear()
        yield from (scorer.score(suspects[number]).to_json() for number in batch)


def serve(suspects: Sequence[Suspect], scorer: Scorer, asked: TextIO, told: TextIO, alive: Callable[[], bool]) -> None:
    """A worker: a line with numbers comes in, for each its "at" lines and one "score" line go out, then "done".

    alive: whether this process can still judge; a device that a mutant has left in error cannot.
    """

    def tell(**said: Any) -> None:
        told.write(json.dumps(said) + "\n")
        told.flush()

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
            if not alive():
                return
        tell(done=True)


@dataclass
class _Worker:
    """One process and what it is doing."""

    process: subprocess.Popen[str]
    left: list[int] = field(default_factory=list)
    at: Row = field(default_factory=dict)
    begun: bool = False

    def send(self, batch: list[int]) -> None:
        """Ask for a batch."""
        assert self.process.stdin is not None
        self.left = list(batch)
        self.process.stdin.write(json.dumps(batch) + "\n")
        self.process.stdin.flush()


def score_apart(suspects: Sequence[Suspect], command: Sequence[str], workers: int) -> Iterator[Row]:
    """Score all in `workers` processes that `command` starts; each row as it comes.

    Raises WorkerLost where a process ends without having been able to score anything, or where its judging raises.
    """
    waiting = batches(suspects)
    rows: queue.Queue[Row | BaseException | None] = queue.Queue()
    lock = threading.Lock()

    def work() -> None:
        worker = None
        try:
            while True:
                with lock:
                    batch = waiting.pop(0) if waiting else []
                deaths: list[Row] = []
                while batch:
                    worker = worker or _Worker(subprocess.Popen(command, stdin=-1, stdout=-1, text=True))
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
    for thread in threads:
        thread.start()
    for _ in threads:
        while (row := rows.get()) is not None:
            if isinstance(row, BaseException):
                raise row
            yield row


def _answers(worker: _Worker, batch: list[int], suspects: Sequence[Suspect], deaths: list[Row]) -> Iterator[Row]:
    """The rows of a batch. What is not answered stays in `worker.left`; `deaths` has where processes ended over it."""
    assert worker.process.stdout is not None
    worker.send(batch)
    for line in worker.process.stdout:
        said = json.loads(line)
        if "score" in said:
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
    if "law" not in worker.at or worker.at["at"] not in worker.left:
        if not worker.begun:
            why = f"a worker ended with exit code {code} before it had judged anything"
            raise WorkerLost(f"{why}; --workers 1 shows why")
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


def _died(suspect: Suspect, at: Row, code: int) -> Score:
    why = f"the process ended in the midst of it, with exit code {code}, each of {DEADLY} times"
    return Score(suspect, "KILLED", at["law"], Case.from_json(at["case"]), why, raised=True)
