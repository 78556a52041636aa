"""Workers: each suspect is scored once, also where one of them ends the process that judges it."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from numcheck import Case, Fault, KernelSpec, crew
from numcheck.crew import BATCH, WorkerLost, batches, score_apart, serve
from numcheck.oracles import mhc_post
from numcheck.suspect import Score, Suspect

SPEC = KernelSpec("mine", mhc_post, forward=lambda **inputs: {})
CASE = Case.of(S=1, H=1, D=1)
# A worker that answers as the real one does; number 3 ends it, number 5 ends it before it judges anything.
WORKER = """
import json, os, sys
for line in sys.stdin:
    for number in json.loads(line):
        print(json.dumps({"at": number}), flush=True)
        if number == DEADLY:
            if AT_ONCE:
                os._exit(9)
            print(json.dumps({"at": number, "law": "edges", "case": CASE}), flush=True)
            os._exit(7)
        print(json.dumps({"score": number, "row": {"fault": number}}), flush=True)
    print(json.dumps({"done": True}), flush=True)
"""


def suspects(count: int) -> list[Suspect]:
    return [Suspect(SPEC, fault=Fault(SPEC.but(name=f"f{n}"), "edges", "", honest=SPEC)) for n in range(count)]


def worker(deadly: int, at_once: bool = False) -> list[str]:
    text = WORKER.replace("DEADLY", str(deadly)).replace("AT_ONCE", str(at_once)).replace("CASE", str(CASE.to_json()))
    return [sys.executable, "-c", text]


def test_batches_keep_a_unit_together_and_hold_each_number_once() -> None:
    other = SPEC.but(name="other")
    found = [*suspects(BATCH + 3), *(replace(s, honest=other) for s in suspects(2))]
    made = batches(found)
    assert [len(batch) for batch in made] == [BATCH, 3, 2]
    assert [number for batch in made for number in batch] == list(range(BATCH + 5))


@pytest.mark.parametrize("workers", [1, 3])
def test_each_is_scored_once_whatever_the_number_of_workers(workers: int) -> None:
    rows = list(score_apart(suspects(40), worker(-1), workers))
    assert sorted(row["fault"] for row in rows) == list(range(40))


def test_what_ends_its_process_is_killed_by_that_and_the_rest_goes_on() -> None:
    rows = list(score_apart(suspects(8), worker(3), 1))
    (dead,) = [row for row in rows if row["fault"] == "f3"]
    assert (dead["status"], dead["law"], dead["raised"]) == ("KILLED", "edges", True)
    assert dead["case"] == CASE.to_json()
    assert "exit code 7" in dead["why"]
    assert sorted(row["fault"] for row in rows if row is not dead) == [0, 1, 2, 4, 5, 6, 7]


def test_a_process_that_an_outside_hand_ended_kills_nothing(tmp_path: Path) -> None:
    once = f'if not os.path.exists("{tmp_path}/dead"):\n                open("{tmp_path}/dead", "w")\n                '
    struck = worker(3).copy()
    struck[2] = struck[2].replace("os._exit(7)", once + "os._exit(7)")
    rows = list(score_apart(suspects(8), struck, 1))
    assert (tmp_path / "dead").exists()
    assert sorted(row["fault"] for row in rows) == list(range(8))


def test_processes_that_end_on_one_case_after_another_kill_nothing() -> None:
    wandering = worker(3).copy()
    wandering[2] = wandering[2].replace("'seed': 0", "'seed': os.getpid()")
    with pytest.raises(WorkerLost, match=r"4 processes ended while they judged f3.*no two on one Case"):
        list(score_apart(suspects(8), wandering, 1))


def test_a_worker_that_cannot_start_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(WorkerLost, match="exit code 9"):
        list(score_apart(suspects(3), worker(0, at_once=True), 2))


# What never comes back and takes no hint: it stands for a loop of a device, or one that swallows what would end it.
STUCK = """
import signal, time
signal.signal(signal.SIGALRM, signal.SIG_IGN)
print(json.dumps({"limit": 0.2, "doing": "edges on its Case"}), flush=True)
while True:
    time.sleep(60)
"""


def stuck(text: str = STUCK) -> list[str]:
    """A worker that is stuck at number 3."""
    found = worker(3).copy()
    found[2] = found[2].replace("os._exit(7)", f"exec({text!r})")
    return found


def test_what_never_ends_has_hung_by_no_law_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "GRACE", 0.1)
    rows = list(score_apart(suspects(8), stuck(), 1))
    (late,) = [row for row in rows if row["fault"] == "f3"]
    assert (late["status"], late["law"], late["laws"], late["raised"]) == ("HUNG", "", {}, False)
    assert late["why"] == "hung: edges on its Case did not end within 0.2 s"
    assert late["case"] == CASE.to_json()
    assert sorted(row["fault"] for row in rows if row is not late) == [0, 1, 2, 4, 5, 6, 7]


def test_what_ends_in_time_has_not_hung_however_long_the_next_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stops with the Case: what the judge does then (an honest spec's Case, say) has no limit."""
    monkeypatch.setattr(crew, "GRACE", 0.0)
    line = 'print(json.dumps({{"limit": {}, "doing": "x"}}), flush=True)\n'
    patient = line.format(0.2) + line.format(0.0) + "import time\ntime.sleep(0.9)\n"
    rows = list(score_apart(suspects(8), stuck(patient), 1))
    assert sorted(row["fault"] for row in rows) == list(range(8))


def test_no_worker_outlives_who_asked(tmp_path: Path) -> None:
    """Ctrl-C, or whatever else ends the asking, comes while a worker is in the midst of what never ends."""
    text = STUCK.replace("while True", f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\nwhile True")
    rows = score_apart(suspects(8), stuck(text.replace("0.2", "60.0")), 1)
    assert [next(rows)["fault"] for _ in range(3)] == [0, 1, 2]
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    rows.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_ctrl_c_is_not_for_the_workers_themselves() -> None:
    """They would each show a traceback; who started them ends them."""
    found = worker(3).copy()
    found[2] = found[2].replace(
        "os._exit(7)", 'print(json.dumps({"score": 3, "row": {"fault": os.getsid(0)}}), flush=True); continue'
    )
    (row,) = [row for row in score_apart(suspects(4), found, 1) if row["fault"] not in range(4)]
    assert row["fault"] != os.getsid(0)


class Raises:
    """A scorer with a fault of its own."""

    torn = False

    def __init__(self) -> None:
        self.killers: dict[str, object] = {}

    def score(self, suspect: Suspect) -> Score:
        raise RuntimeError("a fault of the judge")


def test_a_judge_that_raises_says_so() -> None:
    told = io.StringIO()
    with pytest.raises(RuntimeError, match="a fault of the judge"):
        serve(suspects(1), Raises(), io.StringIO("[0]\n"), told, lambda: True)  # type: ignore[arg-type]
    assert "a fault of the judge" in json.loads(told.getvalue().splitlines()[-1])["broke"]


def test_what_a_device_in_error_raises_ends_the_process_and_says_nothing_of_the_judge() -> None:
    told = io.StringIO()
    with pytest.raises(RuntimeError, match="a fault of the judge"):
        serve(suspects(1), Raises(), io.StringIO("[0]\n"), told, lambda: False)  # type: ignore[arg-type]
    assert [json.loads(line) for line in told.getvalue().splitlines()] == [{"at": 0}]


def test_a_fault_of_the_judge_kills_nothing() -> None:
    raising = worker(3).copy()
    raising[2] = raising[2].replace("os._exit(7)", 'print(json.dumps({"broke": "Traceback: a fault"}), flush=True)')
    with pytest.raises(WorkerLost, match=r"numcheck itself failed at f3.*\n.*a fault"):
        list(score_apart(suspects(8), raising, 1))


def test_a_worker_tells_where_it_is_before_it_judges() -> None:
    class Fake:
        torn = False

        def __init__(self) -> None:
            self.killers: dict[str, object] = {}
            self.at = lambda law, case: None

        def score(self, suspect: Suspect) -> Score:
            self.at("edges", CASE)
            return Score(suspect, "KILLED", "edges", CASE)

    told = io.StringIO()
    serve(suspects(2), Fake(), io.StringIO("[0]\n[1]\n"), told, lambda: True)  # type: ignore[arg-type]
    said = [json.loads(line) for line in told.getvalue().splitlines()]
    assert [sorted(line) for line in said[:4]] == [["at"], ["at", "case", "law"], ["row", "score"], ["done"]]
    assert [line["row"]["fault"] for line in said if "row" in line] == ["f0", "f1"]


def test_a_worker_that_has_cut_something_off_stops_after_its_answer() -> None:
    class Fake:
        torn = False

        def __init__(self) -> None:
            self.killers: dict[str, object] = {}

        def score(self, suspect: Suspect) -> Score:
            self.torn = suspect.id == "f1"
            return Score(suspect, "HUNG" if self.torn else "KILLED")

    told = io.StringIO()
    serve(suspects(3), Fake(), io.StringIO("[0, 1, 2]\n"), told, lambda: True)  # type: ignore[arg-type]
    said = [json.loads(line) for line in told.getvalue().splitlines()]
    assert [line["score"] for line in said if "score" in line] == [0, 1]


def test_a_worker_whose_device_is_in_error_stops_after_its_answer() -> None:
    class Fake:
        torn = False

        def __init__(self) -> None:
            self.killers: dict[str, object] = {}

        def score(self, suspect: Suspect) -> Score:
            return Score(suspect, "KILLED", "edges", CASE)

    told = io.StringIO()
    serve(suspects(2), Fake(), io.StringIO("[0, 1]\n"), told, lambda: False)  # type: ignore[arg-type]
    assert [json.loads(line).get("score") for line in told.getvalue().splitlines()] == [None, 0]
