"""A problem, a spec and laws that are pure functions of the Case: what the search does, without any tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from numcheck.case import Case, Fact
from numcheck.contract import Contract
from numcheck.laws.law import Law
from numcheck.oracle import CaseSpace, Input, Oracle, Output
from numcheck.profile import Profile
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict

SPACE = CaseSpace(
    sizes={"S": (0, 64), "D": (1, 4096)},
    choices={"H": (1, 2, 4, 8)},
    facts={"pattern": ("spread", "same", "holes")},
    grid={
        "S": (0, 1, 5),
        "H": (1, 2, 4, 8),
        "D": (31, 257, 2053, 4096),
        "dtype": ("bf16", "fp32"),
        "layout": ("contiguous", "strided"),
        "offset": (0, 1, 2, 3),
    },
)


def identity(**tensors: Any) -> dict[str, Any]:
    return {"out": tensors["x"]}


def oracle(space: CaseSpace = SPACE) -> Oracle:
    return Oracle(
        "fake",
        inputs=(Input("x", ("S", "H", "D")),),
        outputs=(Output("out", ("S", "H", "D")), Output("lse", ("S",))),
        forward=lambda read, x: {"out": x},
        space=space,
    )


def spec(space: CaseSpace = SPACE, **contract: Any) -> KernelSpec:
    return KernelSpec("fake.kernel", oracle(space), forward=identity, contract=Contract(**contract))


Says = Callable[[Case], Mapping[str, Status]]


@dataclass
class Watch:
    """A law that says what `says` says, and remembers what it was asked."""

    says: Says
    asked: list[Case] = field(default_factory=list)
    efforts: list[Profile] = field(default_factory=list)

    def law(self, **fields: Any) -> Law:
        return Law("bitwise", "a fake", self.judge, **fields)

    def judge(self, spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
        self.asked.append(case)
        self.efforts.append(profile)
        outputs = {name: OutputVerdict(status, f"{status.name}: as asked") for name, status in self.says(case).items()}
        return Verdict(spec.name, "bitwise", "says what it is told", outputs)


def where(condition: Callable[[Case], bool], status: Status = Status.FAIL, output: str = "out") -> Says:
    """`status` in `output` where `condition` holds, PASS elsewhere."""
    return lambda case: {"out": Status.PASS, "lse": Status.PASS} | ({output: status} if condition(case) else {})


def facts(case: Case) -> dict[str, Fact]:
    """The fields of a Case in one dict."""
    plain: dict[str, Fact] = {k: getattr(case, k) for k in ("dtype", "regime", "layout", "offset", "seed")}
    return {**dict(case.sizes), **dict(case.facts), **plain}
