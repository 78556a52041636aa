"""The invariance law: what must follow from a run when its Case is changed in a way whose effect is known.

The VJP is linear in the cotangent; powers of two pass through rounding exactly; layout and storage offset do not
matter; a slice of the batch gives the slice of the result; an output that the spec has from another one has that
one's bits; and whatever relations the oracle declares. An output promised in `any` order is held to its radius where
others are held to their bits.
"""

from __future__ import annotations

from torch import Tensor

from numcheck.capability import Unavailable
from numcheck.case import Case
from numcheck.execute import execute
from numcheck.laws.law import Law
from numcheck.laws.measured import everywhere, found, hashes, saved_alone, unjudged
from numcheck.laws.placing import laid_out, sliced
from numcheck.laws.relation import Held, same_bits, verdicts, within
from numcheck.laws.scaling import in_cotangent, scaled_inputs
from numcheck.laws.subject import Broken, Relations, Subject
from numcheck.oracle import Relation
from numcheck.profile import Profile
from numcheck.sample import exact, sample
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict

NAME = "invariance"


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The Verdict of one Case: every relation that applies to it, output by output."""
    blank = Verdict(spec.name, NAME, f"{spec.name}: outputs follow when the Case is changed in a known way", {})
    nothing = unjudged(spec, case, profile, blank)
    if nothing is not None:
        return nothing
    drawn = sample(spec.oracle, case, device=profile.device)
    run = execute(spec, drawn, device=profile.device, saved=saved_alone(spec, drawn))
    if run.error:
        return everywhere(spec, case, blank, Status.ERROR, run.error, run)
    subject = Subject(spec, drawn, profile.device, run)
    held: dict[str, list[Held]] = {name: [] for name in subject.judged}
    outputs: dict[str, OutputVerdict] = {}
    try:
        for relation in (in_cotangent, scaled_inputs, laid_out, sliced, _agreeing, _declared):
            for output, result in relation(subject):
                held[output].append(result)
    except Broken as error:
        outputs = dict.fromkeys(subject.judged, OutputVerdict(Status.ERROR, str(error)))
    return Verdict(
        spec.name,
        NAME,
        blank.claim,
        outputs or found(run, verdicts(held, "no relation applies to this Case")),
        gates=tuple(h.gate for relations in held.values() for h in relations),
        hashes=hashes(run),
        evidence=run.evidence,
    )


def _agreeing(subject: Subject) -> Relations:
    """Outputs that the spec promises to have bit for bit as another spec, where that one can run."""
    case, agrees = subject.sample.case, subject.spec.agrees
    for name in [n for n in subject.judged if n in agrees]:
        other = agrees[name].on(subject.device)
        if other.illegal(case) is not None or isinstance(other.available(subject.device), Unavailable):
            continue
        got = Subject(other, subject.sample, subject.device, subject.run).rerun(subject.sample, other.name)
        yield name, same_bits(name, subject.outputs[name], got[name], f"the same bits as {other.name} gives")


def _declared(subject: Subject) -> Relations:
    """The relations that the oracle declares."""
    for relation in subject.spec.oracle.relations:
        yield from _one_declared(subject, relation)


def _one_declared(subject: Subject, relation: Relation) -> Relations:
    whole = subject.sample
    tensors = relation.transform(whole.case, whole.tensors)
    if tensors is None:
        return
    changed = whole.but(**tensors)
    got = relation.back(whole.case, dict(subject.rerun(changed, relation.name)))
    radii: dict[str, Tensor] = {}
    for name in subject.judged:
        if name not in got:
            continue
        if relation.exact and subject.exactly(name):
            yield name, same_bits(name, got[name], subject.outputs[name], f"{relation.name}: the same bits")
            continue
        radii = radii or relation.back(whole.case, subject.radius(changed))
        allowed = subject.own[name] + radii[name].abs()
        expected = exact(subject.outputs[name])
        reason = f"{relation.name}: within both radii"
        yield name, within(name, exact(got[name]), expected, allowed, reason, huge=subject.huge(name))


INVARIANCE = Law(
    NAME,
    "outputs follow when a Case is changed in a way whose effect is known: linear, scaled, laid out, sliced",
    judge=judge,
)
