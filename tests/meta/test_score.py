"""Scores are earned: a law that passes the honest kernel kills, and a reason is believed until a Case refutes it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from numcheck import Case, Fault, KernelSpec, interpreter, patience
from numcheck.capability import Capability
from numcheck.laws import LAWS
from numcheck.laws.law import Law
from numcheck.mutate import Mutant, mutants
from numcheck.profile import QUICK
from numcheck.reasons import NAME, Reason, reasons
from numcheck.score import Scorer
from numcheck.suspect import Suspect, suspects
from numcheck.trials import trials

interpreter.enable()

import numcheck.score as scoring  # noqa: E402
from tests.meta.row_sum import ATOMIC, ORDERED, TORCH, add_and_lose, racy, spec  # noqa: E402

# Enough for every kill here; a survivor is put to all of it.
LIGHT = replace(QUICK, examples=2, grid=4, orders=2)


def scorer(**fields: object) -> Scorer:
    return Scorer(LIGHT, largest=64, **fields)  # type: ignore[arg-type]


def only(honest: KernelSpec, function: str, operator: str, after: str = "") -> Mutant:
    wanted = (m for m in mutants(honest) if m.function == function and m.operator == operator and after in m.after)
    return next(wanted)


def test_a_wrong_sign_is_killed_on_a_case_where_the_honest_kernel_holds() -> None:
    judge = scorer()
    score = judge.score(Suspect(ORDERED, mutant=only(ORDERED, "add_slots", "wrong-sign")))
    assert score.status == "KILLED"
    assert score.case is not None
    (law,) = [law for law in scoring.LAWS if law.name == score.law]
    assert law.judge(ORDERED, score.case, LIGHT).held
    assert score.changed
    assert not score.raised
    assert score.usual is True
    assert 0 < score.seconds < 60


def test_lost_updates_are_killed_by_the_bitwise_law_and_pass_the_usual_test() -> None:
    """An atomic add as load, add, store is right in the order that programs are written in."""
    mutant = only(ATOMIC, "add_atomically", "atomic-to-store", "tl.load")
    score = scorer().score(Suspect(ATOMIC, mutant=mutant))
    assert (score.status, score.law, score.usual) == ("KILLED", "bitwise", False)


def test_a_declared_fault_is_killed_by_the_law_that_it_names() -> None:
    fault = Fault(spec("racy", racy, "any", (add_and_lose,)), "bitwise", "lost updates", honest=ATOMIC)
    score = scorer().score(Suspect(ATOMIC, fault=fault))
    assert (score.status, score.law) == ("KILLED", "bitwise")
    assert set(score.laws) == {"bitwise"}


def test_a_declared_fault_that_its_law_passes_survives_whatever_others_say() -> None:
    fault = Fault(spec("racy", racy, "any", (add_and_lose,)), "memory", "lost updates", honest=ATOMIC)
    assert scorer().score(Suspect(ATOMIC, fault=fault)).status == "SURVIVED"
    score = scorer(every=True).score(Suspect(ATOMIC, fault=fault))
    assert score.status == "SURVIVED"
    assert score.laws["bitwise"]
    assert not score.laws["memory"]
    assert "memory passes it; " in score.why


def test_a_fault_without_an_honest_spec_counts_for_nothing() -> None:
    score = scorer().score(Suspect(None, fault=Fault(ATOMIC, "bitwise", "nobody knows")))
    assert score.status == "SURVIVED"
    assert "honest" in score.why


def test_a_kill_where_the_honest_kernel_fails_too_does_not_count() -> None:
    """The honest one is wrong itself: whatever catches the broken one catches it as well."""
    wrong = spec("twice", lambda x: {"out": 2 * x.to(torch.float32).sum(1)})
    worse = spec("thrice", lambda x: {"out": 3 * x.to(torch.float32).sum(1)})
    fault = Fault(worse, "accuracy", "a factor too much", honest=wrong)
    score = scorer().score(Suspect(wrong, fault=fault))
    assert score.status == "SURVIVED"
    assert "the honest spec fails too" in score.why
    assert scorer().score(Suspect(TORCH, fault=replace(fault, honest=TORCH))).status == "KILLED"


def _contiguous() -> Mutant:
    """torch sums a strided row like any other, so that a forgotten copy is no mistake."""
    honest = spec("copied", copied)
    return only(honest, "copied", "forget-method")


def copied(x: Tensor) -> dict[str, Tensor]:
    return {"out": x.to(torch.float32).clone().sum(1)}


COPIED = spec("copied", copied)


def test_a_mutant_that_never_changes_a_bit_survives_and_says_what_was_tried() -> None:
    score = scorer().score(Suspect(COPIED, mutant=_contiguous()))
    assert score.status == "SURVIVED"
    assert not score.changed
    assert "without a bit that differs" in score.why
    assert set(score.tried) >= {"bitwise", "accuracy", "invariance", "evidence"}


@pytest.mark.parametrize("claim", ["equal", "allowed"])
def test_a_written_reason_makes_it_equivalent(claim: str) -> None:
    suspect = Suspect(COPIED, mutant=_contiguous(), reason=Reason("id", claim, "a sum reads its terms only"))
    score = scorer().score(suspect)
    assert score.status == "EQUIVALENT"
    assert score.to_json()["reason"] == "a sum reads its terms only"


def test_what_only_a_device_shows_is_no_excuse_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[[mutant]]\nid = "{}"\nclaim = "device"\nwhy = "a CPU has no second device"\n'
    (tmp_path / NAME).write_text(text.format(_contiguous().id))
    monkeypatch.setattr("numcheck.suspect.reasons", lambda files: reasons([str(tmp_path / "x.py")]))
    excused = {device: suspects([COPIED], device=device)[0] for device in ("cpu", "cuda")}
    assert [s.reason.claim for s in excused["cpu"] if s.reason] == ["device"]
    assert not [s for s in excused["cuda"] if s.reason]


def test_an_open_reason_explains_a_survivor_that_stays_one() -> None:
    suspect = Suspect(COPIED, mutant=_contiguous(), reason=Reason("id", "open", "nobody has looked yet"))
    assert scorer().score(suspect).status == "SURVIVED"


def test_a_reason_that_a_case_contradicts_is_refuted() -> None:
    mutant = only(ORDERED, "add_slots", "wrong-sign")
    judge = Scorer(LIGHT, largest=128)
    score = judge.score(Suspect(ORDERED, mutant=mutant, reason=Reason(mutant.id, "equal", "signs do not matter")))
    assert score.status == "REFUTED"
    assert "signs" not in score.why
    assert score.law in score.why


def test_a_branch_that_this_spec_never_builds_is_no_part_of_it() -> None:
    """mhc_post_backward_split adds atomically under ATOMIC, and stores where that is false."""
    from kernels import mhc_post

    specs = [s for s in mhc_post.SPECS if "split" in s.name]
    judge, why = scorer(known=lambda spec: specs), {}
    found = {}
    for honest in specs:
        mutant = only(honest, "mhc_post_backward_split", "drop-store", "pass")
        stores = [m for m in mutants(honest) if m.operator == "drop-store" and m.edit.branch is not None]
        assert mutant.edit == stores[0].edit
        scores = [judge.score(Suspect(honest, mutant=m)) for m in (stores[0], stores[-1])]
        found[honest.name] = [score.status for score in scores]
        why[honest.name] = next(score.why for score in scores if score.status == "ABSENT")
    assert found == {
        "mhc_post.triton_split_atomic": ["KILLED", "ABSENT"],
        "mhc_post.triton_split_ordered": ["ABSENT", "KILLED"],
    }
    assert why["mhc_post.triton_split_ordered"].endswith("judged under mhc_post.triton_split_atomic")


def test_a_branch_that_no_kernel_ever_builds_is_a_survivor() -> None:
    """Alone, the ordered split has nobody that adds atomically; where nobody knows the others, that stays open."""
    from kernels import mhc_post

    (honest,) = (s for s in mhc_post.SPECS if s.name == "mhc_post.triton_split_ordered")
    mutant = only(honest, "mhc_post_backward_split", "drop-store", "pass")
    score = scorer(known=lambda spec: [honest]).score(Suspect(honest, mutant=mutant))
    assert score.status == "SURVIVED"
    assert "no other kernel's either" in score.why
    assert scorer().score(Suspect(honest, mutant=mutant)).status == "ABSENT"
    reason = Reason(mutant.id, "open", "nobody builds it")
    assert scorer(known=lambda spec: [honest]).score(Suspect(honest, mutant=mutant, reason=reason)).status == "SURVIVED"


def test_a_branch_for_rows_that_lie_far_apart_is_built() -> None:
    """Grouped kernels take 64-bit offsets within a tile where the edges law lays their rows 2^31 elements apart."""
    from kernels import grouped_srelu

    (honest,) = (s for s in grouped_srelu.SPECS if s.name == "grouped_srelu.triton_slots")
    found = [m for m in mutants(honest) if m.text == "m = m.to(tl.int64)"]
    judge = scorer(known=lambda spec: [honest])
    # Of all its trials those of one law: to list and draw the others takes longer than to judge these.
    edges = tuple(law for law in LAWS if law.name == "edges")
    judge.lists[id(honest), ""] = trials(honest, edges, LIGHT, drawn=0, largest=300)
    score = judge.score(Suspect(honest, mutant=found[0]))
    # These few Cases do not kill it; a larger one of the same law does. What is in no build is put to none.
    assert score.tried, score.why


def test_source_that_does_not_load_is_stillborn() -> None:
    mutant = only(ORDERED, "add_slots", "wrong-sign")
    broken = replace(mutant, edit=replace(mutant.edit, after="total -= -= 1"))
    score = scorer().score(Suspect(ORDERED, mutant=broken))
    assert score.status == "STILLBORN"
    assert "SyntaxError" in score.why


def endless(x: Tensor) -> dict[str, Tensor]:
    while True:
        time.sleep(0.01)


ENDLESS = Fault(spec("endless", endless), "accuracy", "it hangs", honest=TORCH)


def hurried(monkeypatch: pytest.MonkeyPatch) -> Scorer:
    """A scorer that waits for nobody, and for whom the honest kernel is at once through."""
    monkeypatch.setattr(patience, "PATIENCE", 0.4)
    monkeypatch.setattr(Scorer, "seconds", lambda *asked: 0.0)
    return scorer()


def test_a_kernel_that_never_ends_is_cut_off_and_no_law_has_caught_it(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = hurried(monkeypatch)
    score = judge.score(Suspect(TORCH, fault=ENDLESS))
    assert (score.status, score.law, dict(score.laws), score.raised) == ("HUNG", "", {}, False)
    assert score.case is not None
    assert score.why.startswith("hung: accuracy on its Case, for which the honest spec took ")
    assert score.why.endswith("did not end within 0.4 s")
    assert score.usual is None
    assert judge.torn


def test_a_mutant_that_never_ends_has_hung_too_and_a_reason_for_it_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = only(COPIED, "copied", "forget-method")
    turned = replace(mutant, edit=replace(mutant.edit, after="(lambda: [0 for _ in iter(int, 1)])()"))
    reason = Reason(mutant.id, "equal", "a sum reads its terms only")
    assert hurried(monkeypatch).score(Suspect(COPIED, mutant=turned)).status == "HUNG"
    score = hurried(monkeypatch).score(Suspect(COPIED, mutant=turned, reason=reason))
    assert score.status == "REFUTED"
    assert "the reason says that it survives (equal), but it hung" in score.why


def test_a_slow_machine_makes_nobody_hang() -> None:
    assert patience.patience(0.0) == patience.patience(1.0) == patience.PATIENCE
    assert patience.patience(patience.PATIENCE) == patience.SLOWER * patience.PATIENCE


def test_who_is_told_of_a_limit_is_told_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, told = hurried(monkeypatch), []
    judge.limit = lambda seconds, doing: told.append(seconds)
    judge.score(Suspect(TORCH, fault=ENDLESS))
    assert told[1::2] == [0.0] * (len(told) // 2)
    assert all(told[::2])


def interrupting(x: Tensor) -> dict[str, Tensor]:
    raise KeyboardInterrupt


def test_a_kernel_that_feigns_ctrl_c_is_killed_like_any_that_raises() -> None:
    fault = Fault(spec("feigned", interrupting), "accuracy", "it raises", honest=TORCH)
    score = scorer().score(Suspect(TORCH, fault=fault))
    assert (score.status, score.law, score.raised) == ("KILLED", "accuracy", True)
    assert "raised KeyboardInterrupt, which nobody had pressed" in score.why
    leaving = replace(fault, spec=spec("leaving", lambda x: sys.exit(3)))
    assert scorer().score(Suspect(TORCH, fault=leaving)).status == "KILLED"


def test_a_real_ctrl_c_ends_the_run_also_in_the_midst_of_a_kernel() -> None:
    def pressed(x: Tensor) -> dict[str, Tensor]:
        signal.raise_signal(signal.SIGINT)
        return {}

    before = signal.getsignal(signal.SIGINT)
    fault = Fault(spec("pressed", pressed), "accuracy", "", honest=TORCH)
    with pytest.raises(KeyboardInterrupt):
        scorer().score(Suspect(TORCH, fault=fault))
    assert signal.getsignal(signal.SIGINT) is before


def test_a_fault_that_cannot_say_where_it_runs_survives_and_ends_no_run() -> None:
    def capability(device: str) -> Capability:
        raise KeyboardInterrupt

    broken = replace(ENDLESS.spec, capability=capability)
    score = scorer().score(Suspect(TORCH, fault=replace(ENDLESS, spec=broken)))
    assert score.status == "SURVIVED"
    assert "no law could judge it" in score.why


def test_cases_that_killed_before_go_first() -> None:
    judge = scorer()
    found = [Suspect(ORDERED, mutant=m) for m in mutants(ORDERED) if m.function == "add_slots"]
    first, *rest = [judge.score(s) for s in found if s.operator in ("wrong-sign", "drop-last-tile")]
    assert first.status == "KILLED"
    key = (first.law, first.case)
    assert all((score.law, score.case) == key or score.tried.get(first.law) for score in rest)
    assert judge.killers[found[0].unit].most_common(1)[0][0] in {(s.law, s.case) for s in (first, *rest)}


def test_the_process_is_as_it_was() -> None:
    before = dict(os.environ), torch.are_deterministic_algorithms_enabled()
    scorer().score(Suspect(ATOMIC, mutant=only(ATOMIC, "atomic", "unset-memory")))
    assert (dict(os.environ), torch.are_deterministic_algorithms_enabled()) == before


def test_the_pooled_verdict_kills_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no Case shows alone: a kernel that must run and that no output depends on."""

    def decoy(x: Tensor) -> dict[str, Tensor]:
        racy(x)
        return {"out": x.to(torch.float32).sum(1)}

    fault = Fault(spec("decoy", decoy, "any", (add_and_lose,)), "evidence", "a decoy", honest=ATOMIC)
    score = scorer().score(Suspect(ATOMIC, fault=fault))
    assert (score.status, score.case) == ("KILLED", None)
    assert "depend" in score.why or "change" in score.why


def test_suspects_of_one_function_stand_together() -> None:
    found, notes = suspects([ORDERED, ORDERED.but(name="again")])
    assert [note.split(" beside")[0] for note in notes] == ["no equivalent.toml lies"]
    units = [suspect.unit for suspect in found]
    assert units == sorted(units, key=units.index)
    assert {s.spec for s in found} == {"ordered", "again"}


def _says(held: Callable[[KernelSpec, Case], bool]) -> Law:
    from numcheck.verdict import OutputVerdict, Status, Verdict

    def judge(spec: KernelSpec, case: Case, profile: object) -> Verdict:
        status = Status.PASS if held(spec, case) else Status.FAIL
        return Verdict(spec.name, "accuracy", "", {"out": OutputVerdict(status, "said so")}, hashes={"out": "same"})

    return Law("accuracy", "a fake", judge)  # type: ignore[arg-type]


def test_the_law_is_asked_of_the_honest_kernel_first_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Case]] = []

    def held(spec: KernelSpec, case: Case) -> bool:
        asked.append((spec.name, case))
        return spec.name == "torch"

    monkeypatch.setattr(scoring, "LAWS", (_says(held),))
    judge = scorer()
    fault = Fault(spec("other", copied), "accuracy", "fake", honest=TORCH)
    for _ in range(2):
        assert judge.score(Suspect(TORCH, fault=fault)).status == "KILLED"
    names = [name for name, _ in asked]
    assert names == ["torch", "other", "other"]


def test_a_helper_that_compile_time_branches_alone_call_is_in_their_builds_only() -> None:
    """balance_loss's _largest is called where no routing map is given; row_sums is called everywhere."""
    from kernels import balance_loss

    honest = {s.name: s for s in balance_loss.SPECS}
    made = {name: mutants(honest[f"balance_loss_{name}.triton"]) for name in ("map", "topk")}
    pick = {name: next(m for m in found if m.function == "_largest") for name, found in made.items()}
    assert len(pick["map"].calls) == 1
    assert not next(m for m in made["map"] if m.function == "row_sums").calls
    judge = scorer()
    found = {name: judge.score(Suspect(honest[f"balance_loss_{name}.triton"], mutant=m)) for name, m in pick.items()}
    assert found["map"].status == "ABSENT"
    assert found["topk"].status != "ABSENT"
