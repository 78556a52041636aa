"""numcheck judges compute kernels against FP64 oracles; see the README for its three doors."""

from __future__ import annotations

from numcheck.capability import Available, Capability, Unavailable
from numcheck.case import Case
from numcheck.contract import Contract, Policy, Rounding, Sum
from numcheck.oracle import Cancellation, CaseSpace, Input, Oracle, Output, Relation
from numcheck.spec import Fault, KernelSpec

__version__ = "0.1.0"
__all__ = [
    "Available",
    "Cancellation",
    "Capability",
    "Case",
    "CaseSpace",
    "Contract",
    "Fault",
    "Input",
    "KernelSpec",
    "Oracle",
    "Output",
    "Policy",
    "Relation",
    "Rounding",
    "Sum",
    "Unavailable",
]
