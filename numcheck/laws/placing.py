"""Relations of place: layout and storage offset do not matter, and part of a batch gives that part of the result."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from numcheck.case import Case
from numcheck.laws.relation import Held, added, same_bits, same_values, within
from numcheck.laws.subject import Relations, Subject
from numcheck.oracle import Output
from numcheck.sample import Sample, exact, in_layout


def laid_out(subject: Subject) -> Relations:
    """Other layouts and storage offsets give the same bits."""
    for other in _layouts(subject):
        if subject.spec.illegal(other) is None:
            what = f"{other.layout} at storage offset {other.offset}"
            got = subject.rerun(_placed(subject.sample, other), what)
            yield from _same(subject, got, f"the same values {what}: the same bits")


def _layouts(subject: Subject) -> list[Case]:
    """Every other storage offset that the problem has, in the layouts by turns, another one first."""
    case, space = subject.sample.case, subject.spec.oracle.space
    layouts = [*(layout for layout in space.layouts if layout != case.layout), case.layout]
    offsets = [offset for offset in space.offsets if offset != case.offset] or [case.offset]
    turns = [case.but(layout=layouts[k % len(layouts)], offset=offset) for k, offset in enumerate(offsets)]
    return [other for other in turns if other != case]


def _placed(whole: Sample, case: Case) -> Sample:
    """The Sample's own values in another Case's layout and offset."""
    return whole.map(lambda _, t: in_layout(t, case, str(t.device)), case)


def _same(subject: Subject, got: Mapping[str, Tensor], reason: str) -> Relations:
    for name in subject.judged:
        if subject.same_tree(name):
            yield name, same_bits(name, got[name], subject.outputs[name], reason)
        else:
            allowed = 2 * subject.own[name]
            expected = exact(subject.outputs[name])
            either = f"{reason}, or for a tree left open twice the radius"
            yield name, within(name, exact(got[name]), expected, allowed, either, huge=subject.huge(name))


def sliced(subject: Subject) -> Relations:
    """The first rows alone and the last rows alone give their part of the result, or add up to it."""
    oracle, case = subject.spec.oracle, subject.sample.case
    if not oracle.batch or case[oracle.batch] < 2:
        return
    rows, cut = case[oracle.batch], case[oracle.batch] // 2
    spans = ((0, cut), (cut, rows))
    halves = [_rows(subject, case.but(**{oracle.batch: high - low}), low, high) for low, high in spans]
    if any(subject.spec.illegal(half.case) is not None for half in halves):
        return
    parts = [subject.rerun(half, f"{_span(*span)} alone") for half, span in zip(halves, spans, strict=True)]
    for output in oracle.results:
        if output.name in subject.judged and oracle.batched(output) and output.name not in oracle.partial:
            for span, part in zip(spans, parts, strict=True):
                yield output.name, _row_slice(subject, output, part[output.name], *span)
    yield from _added(subject, halves, parts)


def _added(subject: Subject, halves: list[Sample], parts: list[Mapping[str, Tensor]]) -> Relations:
    """A result that is a sum over the batch is the sum of what each half of it gives, within the three radii."""
    names = [name for name in subject.spec.oracle.partial if name in subject.judged]
    if not names:
        return
    radii = [subject.radius(half) for half in halves]
    reason = "a sum over the batch: its two halves add up to it"
    for name in names:
        whole, two = exact(subject.outputs[name]), (exact(parts[0][name]), exact(parts[1][name]))
        if subject.whole(name):
            yield name, same_values(name, two[0] + two[1], whole, reason)
        else:
            allowed = subject.own[name] + radii[0][name] + radii[1][name]
            near = f"{reason} within their radii"
            yield name, added(name, two, whole, allowed, near, huge=subject.huge(name))


def _rows(subject: Subject, case: Case, low: int, high: int) -> Sample:
    """Some rows of the batch; the scalars are those of the whole, of which this is a part."""
    oracle = subject.spec.oracle
    batched = {declared.name for declared in (*oracle.inputs, *oracle.cotangents) if oracle.batched(declared)}

    def cut(name: str, tensor: Tensor) -> Tensor:
        return in_layout(tensor[low:high] if name in batched else tensor, case, str(tensor.device))

    return subject.sample.map(cut, case)


def _span(low: int, high: int) -> str:
    return f"rows {low} to {high - 1}"


def _row_slice(subject: Subject, output: Output, got: Tensor, low: int, high: int) -> Held:
    expected = subject.outputs[output.name][low:high]
    reason = f"{_span(low, high)} alone: the same bits as in the whole batch"
    if subject.same_tree(output.name):
        return same_bits(output.name, got, expected, reason)
    allowed = 2 * subject.own[output.name][low:high]
    either = f"{reason}, or for a tree left open twice the radius"
    return within(output.name, exact(got), exact(expected), allowed, either, huge=subject.huge(output.name))
