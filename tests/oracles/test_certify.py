"""The certificate passes right oracles and fails wrong ones."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from numcheck.case import Case
from numcheck.certify import LIMIT, certify, slope
from numcheck.errors import InvalidSpec, Refused
from numcheck.oracle import CaseSpace, Input, Oracle, Output
from numcheck.oracles import mhc_post

assert mhc_post.vjp is not None
RIGHT = mhc_post.vjp


def wrong_sign(read: Any, **tensors: Any) -> dict[str, Any]:
    gradients = RIGHT(read, **tensors)
    return {**gradients, "d_x": -gradients["d_x"]}


def transposed_comb(read: Any, *, comb: Any, **tensors: Any) -> dict[str, Any]:
    return RIGHT(read, comb=comb.transpose(1, 2), **tensors)


def slightly_off(read: Any, **tensors: Any) -> dict[str, Any]:
    gradients = RIGHT(read, **tensors)
    return {**gradients, "d_post": gradients["d_post"] * (1 + 1e-12)}


def not_a_number(read: Any, **tensors: Any) -> dict[str, Any]:
    gradients = RIGHT(read, **tensors)
    return {**gradients, "d_comb": gradients["d_comb"] * torch.nan}


def test_mhc_post_is_certified() -> None:
    certificate = certify(mhc_post)
    assert certificate.status == "CERTIFIED"
    assert certificate.worst <= LIMIT
    assert certificate.vjp == "analytic"
    assert set(certificate.by_output) == {o.name for o in mhc_post.results}


@pytest.mark.parametrize("vjp", [wrong_sign, transposed_comb, slightly_off, not_a_number])
def test_a_wrong_vjp_fails(vjp: Any) -> None:
    certificate = certify(replace(mhc_post, vjp=vjp))
    assert certificate.status == "FAILED"
    assert not certificate.worst <= LIMIT


def test_a_wrong_forward_fails() -> None:
    def forward(read: Any, *, comb: Any, **inputs: Any) -> dict[str, Any]:
        return mhc_post.forward(read, comb=comb.transpose(1, 2), **inputs)

    certificate = certify(replace(mhc_post, forward=forward))
    assert certificate.status == "FAILED"
    assert certificate.by_output["out"] > LIMIT


def test_without_a_twin_nothing_is_certified() -> None:
    certificate = certify(replace(mhc_post, twin=None))
    assert certificate.status == "UNCERTIFIED"
    assert math.isnan(certificate.worst)


def test_without_a_vjp_autograd_is_certified_and_labelled() -> None:
    certificate = certify(replace(mhc_post, vjp=None))
    assert (certificate.status, certificate.vjp) == ("CERTIFIED", "autograd")


def softmax_oracle() -> Oracle:
    """y = softmax(x) of one row, in which every term of the VJP cancels."""

    def forward(read: Any, x: Any) -> dict[str, Any]:
        return {"y": read.at("y", torch.softmax(x, -1))}

    def vjp(read: Any, x: Any, d_y: Any) -> dict[str, Any]:
        y = torch.softmax(x, -1)
        return {"d_x": read.at("d_x", y * (d_y - read.total("dot", y * d_y, -1).unsqueeze(-1)))}

    def twin(mp: Any, case: Case, x: Any) -> dict[str, Any]:
        top = max(x)
        powers = [mp.exp(v - top) for v in x]
        return {"y": [p / mp.fsum(powers) for p in powers]}

    return Oracle(
        "softmax",
        inputs=(Input("x", ("N",)),),
        outputs=(Output("y", ("N",)),),
        forward=forward,
        vjp=vjp,
        twin=twin,
        space=CaseSpace({"N": (1, 9)}, tiny=(Case.of(N=5, regime="normal"), Case.of(N=7, regime="mean4"))),
    )


def test_a_softmax_is_certified_through_its_own_maximum() -> None:
    assert certify(softmax_oracle()).status == "CERTIFIED"


def test_a_softmax_vjp_that_forgets_the_row_sum_fails() -> None:
    def vjp(read: Any, x: Any, d_y: Any) -> dict[str, Any]:
        return {"d_x": torch.softmax(x, -1) * d_y}

    assert certify(replace(softmax_oracle(), vjp=vjp)).status == "FAILED"


# Each function of the tape beside torch's own derivative.
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "rational": (
        lambda x: (1.0 - x * x) / (2.0 + x) - 3.0 / (x + 5.0),
        lambda mp, v: (1 - v * v) / (2 + v) - 3 / (v + 5),
    ),
    "powers": (lambda x: x**3 + x**-2, lambda mp, v: v**3 + mp.power(v, -2)),
    "exp and log": (lambda x: torch.exp(x) * torch.log(x), lambda mp, v: mp.exp(v) * mp.log(v)),
    "sqrt and tanh": (lambda x: torch.sqrt(x) - torch.tanh(x), lambda mp, v: mp.sqrt(v) - mp.tanh(v)),
    "max and abs": (lambda x: torch.relu(x - 0.5) + torch.abs(x - 1), lambda mp, v: max(v - 0.5, 0) + abs(v - 1)),
    "expm1 and log1p": (lambda x: torch.expm1(x) * torch.log1p(x), lambda mp, v: mp.expm1(v) * mp.log1p(v)),
    "rsqrt": (torch.rsqrt, lambda mp, v: 1 / mp.sqrt(v)),
    "minus": (lambda x: -(2 - x) - 1, lambda mp, v: -(2 - v) - 1),
    "fabs": (torch.abs, lambda mp, v: mp.fabs(v)),
}


def elementwise(function: Any, scalar: Any) -> Oracle:
    return Oracle(
        "elementwise",
        inputs=(Input("x", ("N",), fill="gain"),),
        outputs=(Output("y", ("N",)),),
        forward=lambda read, x: {"y": function(x)},
        twin=lambda mp, case, x: {"y": [scalar(mp, v) for v in x]},
        space=CaseSpace({"N": (1, 9)}, tiny=(Case.of(N=8), Case.of(N=8, seed=1))),
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_tape_differentiates(name: str) -> None:
    function, scalar = FUNCTIONS[name]
    assert certify(elementwise(function, scalar)).status == "CERTIFIED"
    assert certify(elementwise(lambda x: function(x) + 1e-9 * x, scalar)).status == "FAILED"


def test_an_unknown_function_of_a_twin_is_named() -> None:
    with pytest.raises(Refused, match=r"mp\.zeta"):
        certify(elementwise(torch.exp, lambda mp, v: mp.zeta(v)))


def test_a_twin_of_another_size_is_told_so() -> None:
    with pytest.raises(InvalidSpec, match="8 elements, its twin 7"):
        certify(replace(elementwise(torch.exp, None), twin=lambda mp, case, x: {"y": [mp.exp(v) for v in x[1:]]}))


def test_a_twin_without_tiny_cases_is_told_so() -> None:
    with pytest.raises(InvalidSpec, match="tiny"):
        certify(replace(mhc_post, space=replace(mhc_post.space, tiny=())))


def test_both_sides_of_a_kink() -> None:
    oracle, case = elementwise(torch.relu, lambda mp, v: max(v, 0)), Case.of(N=2)
    values = {"x": [0.0, 1.0], "d_y": [3.0, 5.0]}
    assert slope(oracle, case, values, "x", 0, 1) == pytest.approx(3.0, rel=1e-15)
    assert slope(oracle, case, values, "x", 0, -1) == 0.0
    assert slope(oracle, case, values, "x", 1, -1) == pytest.approx(5.0, rel=1e-15)


def test_mpmaths_global_precision_is_left_alone() -> None:
    import mpmath

    before = mpmath.mp.dps
    certify(mhc_post)
    assert mpmath.mp.dps == before
