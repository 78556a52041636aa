"""The contract with cuDNN's grouped backwards: which keyword goes in, when, and what is raised where it cannot.

Against fakes of other front-ends (keyword absent, version lying, combination unsupported), and against the installed
package: its source where the wheel alone is there, its functions where their own dependencies are too.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.grouped_srelu import CUDNN_DGLU, CUDNN_DSRELU, cudnn_dglu, cudnn_dsrelu, frontend
from kernels.grouped_srelu.packing import E2M1, Places, packed, unpacked
from numcheck import Available, Case, KernelSpec, Unavailable
from numcheck.determinism import NVTE
from numcheck.errors import NotDeterministic
from numcheck.laws.bitwise import BITWISE
from numcheck.profile import QUICK
from numcheck.reading import Radius, Truth, read
from numcheck.sample import sample
from numcheck.verdict import Status
from tests.kernels.fake_cudnn import Front

# Two N tiles and one row tile; one of either; one N tile and two row tiles.
WIDE, NARROW, TALL = ((1, 288, 4), (1, 64, 4), (1, 64, 129))


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(NVTE.name, raising=False)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Front]:
    """install(**of a Front): the front-end that `import cudnn` finds."""

    def installed(**kind: Any) -> Front:
        front = Front(**kind)
        monkeypatch.setitem(__import__("sys").modules, "cudnn", front.module())
        return front

    return installed


def a_case(spec: KernelSpec, size: tuple[int, int, int], **facts: Any) -> Case:
    E, N, M = size
    return Case.of(E=E, N=N, M=M, H=8, dtype="bf16", regime="integers", facts=facts)


def called(spec: KernelSpec, case: Case) -> dict[str, Tensor]:
    assert spec.vjp is not None
    return spec.vjp(**spec.oracle.for_vjp(sample(spec.oracle, case).given, {}))


BOTH = pytest.mark.parametrize("spec", [CUDNN_DSRELU, CUDNN_DGLU], ids=lambda spec: spec.name)


@BOTH
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "facts",
    [{}, {"rows": "padded", "onto": "data"}, {"prob": "none", "rows": "last empty"}, {"bias": False}, {"clamp": 4.0}],
    ids=str,
)
def test_rows_go_to_their_places_and_the_results_come_back(
    spec: KernelSpec, dtype: str, facts: Mapping[str, Any], install: Callable[..., Front]
) -> None:
    """Against the oracle, with the fake's arithmetic: what is at stake is alignment, packing and the way back."""
    case = Case.of(E=3, N=96, M=300, H=33, dtype=dtype, regime="integers", facts=facts, seed=4)
    if dtype not in spec.dtypes or ("clamp" in facts and "swiglu" in spec.name):
        return
    install()
    given = sample(spec.oracle, case).exact()
    truth = read(spec.oracle, Truth(), given)
    radius = read(spec.oracle, Radius(spec.contract.policy(case)), given)
    got = called(spec, case)
    assert set(got) == set(spec.judged_for(case))
    for name, value in got.items():
        assert bool(((value.double() - truth[name]).abs() <= radius[name]).all()), name


@BOTH
def test_without_rows_nothing_is_called(spec: KernelSpec, install: Callable[..., Front]) -> None:
    front = install()
    got = called(spec, a_case(spec, (2, 64, 0), onto="data"))
    assert got["d_c"].shape[0] == 0
    assert not front.calls


# NVTE_ALLOW_NONDETERMINISTIC_ALGO, torch's flag (soft: warn_only), and whether that is a request.
TRUTH_TABLE = [
    (None, "off", False),
    ("1", "off", False),
    ("0", "off", True),
    (None, "on", True),
    ("1", "on", True),
    ("0", "on", True),
    (None, "soft", True),
    ("1", "soft", True),
    ("0", "soft", True),
]


def ask(monkeypatch: pytest.MonkeyPatch, variable: str | None, flag: str) -> None:
    if variable is not None:
        monkeypatch.setenv(NVTE.name, variable)
    if flag != "off":
        torch.use_deterministic_algorithms(True, warn_only=flag == "soft")


@pytest.mark.parametrize(("variable", "flag", "asked"), TRUTH_TABLE)
def test_the_keyword_goes_in_as_true_or_not_at_all(
    variable: str | None, flag: str, asked: bool, install: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    front = install()
    ask(monkeypatch, variable, flag)
    called(CUDNN_DSRELU, a_case(CUDNN_DSRELU, WIDE))
    (call,) = front.calls
    assert call.get("deterministic", "absent") == (True if asked else "absent")


@pytest.mark.parametrize(("variable", "flag", "asked"), TRUTH_TABLE)
def test_without_the_keyword_a_request_is_refused_before_the_call(
    variable: str | None, flag: str, asked: bool, install: Callable[..., Front], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version lies: a development build called itself 1.28.0 before it took the argument."""
    front = install(version="1.28.0", keyword="absent")
    ask(monkeypatch, variable, flag)
    case = a_case(CUDNN_DSRELU, WIDE)
    if not asked:
        called(CUDNN_DSRELU, case)
    elif flag == "soft" and variable != "0":
        with pytest.warns(UserWarning, match=r"upgrade nvidia-cudnn-frontend to 1\.28\.0 or later"):
            called(CUDNN_DSRELU, case)
    else:
        with pytest.raises(NotDeterministic, match=r"upgrade nvidia-cudnn-frontend to 1\.28\.0 or later"):
            called(CUDNN_DSRELU, case)
        assert not front.calls
    assert all("deterministic" not in call for call in front.calls)


def test_an_old_version_that_takes_it_is_believed(install: Callable[..., Front]) -> None:
    front = install(version="0.9.0")
    torch.use_deterministic_algorithms(True)
    called(CUDNN_DSRELU, a_case(CUDNN_DSRELU, WIDE))
    assert front.calls[0]["deterministic"] is True


def test_a_wrapper_that_takes_anything_may_drop_it(install: Callable[..., Front]) -> None:
    front = install(keyword="anything")
    torch.use_deterministic_algorithms(True)
    with pytest.raises(NotDeterministic, match="takes no `deterministic` argument"):
        called(CUDNN_DSRELU, a_case(CUDNN_DSRELU, WIDE))
    assert not front.calls


@BOTH
@pytest.mark.parametrize(
    ("size", "facts"),
    [(NARROW, {}), (WIDE, {"prob": "none"}), (TALL, {"prob": "none", "bias": False})],
    ids=["one tile", "no d_prob", "neither"],
)
def test_nothing_is_asked_or_raised_where_no_sum_is_shared(
    spec: KernelSpec, size: tuple[int, int, int], facts: dict[str, Any], install: Callable[..., Front]
) -> None:
    front = install(keyword="absent")
    torch.use_deterministic_algorithms(True)
    called(spec, a_case(spec, size, **facts))
    assert "deterministic" not in front.calls[0]


UNSUPPORTED = "deterministic=True is implemented only for the block-scaled kernel with torch tensors"


@BOTH
def test_presence_is_not_support(spec: KernelSpec, install: Callable[..., Front]) -> None:
    front = install(unsupported=UNSUPPORTED)
    torch.use_deterministic_algorithms(True)
    with pytest.raises(NotDeterministic, match=f"nvidia-cudnn-frontend says: {UNSUPPORTED}"):
        called(spec, a_case(spec, WIDE, bias=False))
    assert [call["deterministic"] for call in front.calls] == [True]


def test_a_soft_request_warns_and_goes_on_without(install: Callable[..., Front]) -> None:
    front = install(unsupported=UNSUPPORTED)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match="this call has no deterministic mode there"):
        called(CUDNN_DSRELU, a_case(CUDNN_DSRELU, WIDE))
    assert [call.get("deterministic") for call in front.calls] == [True, None]


def test_what_is_not_implemented_for_another_reason_is_not_taken_for_a_refusal(install: Callable[..., Front]) -> None:
    install(unsupported="Invalid ab_dtype: expected fp4 or fp8")
    torch.use_deterministic_algorithms(True)
    with pytest.raises(NotImplementedError, match="Invalid ab_dtype"):
        called(CUDNN_DSRELU, a_case(CUDNN_DSRELU, WIDE))


def test_dglu_refuses_a_d_bias_that_no_version_orders(install: Callable[..., Front]) -> None:
    """1.32.0 drops the keyword without a word where there is no d_prob, so it is not left to the wrapper."""
    front = install()
    torch.use_deterministic_algorithms(True)
    with pytest.raises(NotDeterministic, match="generate_dbias=False and sum d_c"):
        called(CUDNN_DGLU, a_case(CUDNN_DGLU, TALL, prob="none"))
    assert not front.calls


def test_the_remedy_differs_by_reason(install: Callable[..., Front]) -> None:
    told = set()
    for spec, kind, facts in (
        (CUDNN_DSRELU, {"keyword": "absent"}, {}),
        (CUDNN_DSRELU, {"unsupported": UNSUPPORTED}, {}),
        (CUDNN_DGLU, {"keyword": "absent"}, {"bias": False}),
        (CUDNN_DGLU, {"unsupported": UNSUPPORTED}, {"bias": False}),
        (CUDNN_DGLU, {}, {}),
    ):
        install(**kind)
        torch.use_deterministic_algorithms(True)
        with pytest.raises(NotDeterministic) as refused:
            called(spec, a_case(spec, WIDE, **facts))
        told.add(str(refused.value).split(": ", 1)[1])
    assert len(told) == 5


def test_nobody_asks_and_nobody_is_warned(install: Callable[..., Front]) -> None:
    install(keyword="absent")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        called(CUDNN_DSRELU, a_case(CUDNN_DSRELU, WIDE))


def test_values_that_four_bits_do_not_hold_are_refused(install: Callable[..., Front]) -> None:
    front = install()
    case = a_case(CUDNN_DSRELU, NARROW).but(regime="normal")
    assert "4-bit" in str(CUDNN_DSRELU.illegal(case))
    with pytest.raises(ValueError, match="d_out holds values that are no 4-bit floats"):
        called(CUDNN_DSRELU, case)
    assert not front.calls


def test_packing_is_the_inverse_of_unpacking() -> None:
    values = torch.tensor([*E2M1, *(-v for v in E2M1)])
    assert torch.equal(unpacked(packed(values, "values")), values)
    assert torch.equal(torch.signbit(unpacked(packed(values, "values"))), torch.signbit(values))
    for wrong in (0.25, 5.0, 7.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="values holds"):
            packed(torch.tensor([0.0, wrong]), "values")


def test_places_are_aligned_and_lead_back() -> None:
    tokens, offsets = torch.tensor([3, 0, 257], dtype=torch.int32), torch.tensor([5, 5, 300], dtype=torch.int32)
    places = Places.of(tokens, offsets, 301)
    assert places.ends.tolist() == [256, 256, 768]
    rows = torch.arange(301.0)
    there = places.aligned(rows)
    assert there[:3].tolist() == [0, 1, 2]
    assert there[256:513].tolist() == list(range(5, 262))
    assert not bool(there[3:256].any() or there[513:].any())
    real = [0, 1, 2, *range(5, 262)]
    assert places.back(there).tolist() == [float(r) if r in real else 0.0 for r in range(301)]


@pytest.mark.parametrize(
    ("visible", "capability", "keyword", "reason", "needs"),
    [
        (False, (0, 0), "named", "no CUDA device", "sm100"),
        (True, (9, 0), "named", "this GPU has 9.0", "sm100"),
        (True, (10, 0), "none", "upgrade it", frontend.PACKAGE),
        (True, (10, 0), "named", "", ""),
        (True, (12, 0), "named", "", ""),
    ],
)
def test_one_probe_says_why_not(
    visible: bool, capability: tuple[int, int], keyword: str, reason: str, needs: str,
    install: Callable[..., Front], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    install()
    if keyword == "none":
        monkeypatch.delattr(f"cudnn.{cudnn_dsrelu.NAME}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: visible)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    found = CUDNN_DSRELU.available("cuda")
    if reason:
        assert isinstance(found, Unavailable)
        assert reason in found.reason
        assert found.needs == needs
    else:
        assert isinstance(found, Available)


@BOTH
def test_here_it_is_unavailable_with_that_reason(spec: KernelSpec) -> None:
    verdict = BITWISE.judge(spec, a_case(spec, WIDE), QUICK)
    assert verdict.status is Status.UNAVAILABLE
    assert all("SM100" in o.why and "needs sm100" in o.why for o in verdict.outputs.values())


# The installed package.

PATHS = {cudnn_dsrelu.NAME: "dsrelu", cudnn_dglu.NAME: "dglu", "grouped_gemm_dswiglu_wrapper_sm100": "dswiglu"}
FOUND = importlib.util.find_spec("cudnn")
HAVE_WHEEL = pytest.mark.skipif(FOUND is None, reason=f"{frontend.PACKAGE} is not installed")


def parameters(name: str) -> dict[str, str]:
    """Parameter -> default, as written in the source of the installed wheel; nothing is imported."""
    assert FOUND is not None
    assert FOUND.origin is not None
    source = Path(FOUND.origin).parent / "gemm" / "cutedsl" / "grouped" / PATHS[name] / "api.py"
    functions = [n for n in ast.parse(source.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == name]
    arguments = functions[0].args
    names = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
    defaults = [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
    return dict.fromkeys(names, "") | dict(
        zip(names[len(names) - len(defaults) :], map(ast.unparse, defaults), strict=True)
    )


@HAVE_WHEEL
def test_the_installed_wrappers_take_what_is_passed(install: Callable[..., Front]) -> None:
    front = install()
    for spec, name in ((CUDNN_DSRELU, cudnn_dsrelu.NAME), (CUDNN_DGLU, cudnn_dglu.NAME)):
        clamp = {"clamp": 4.0} if spec is CUDNN_DSRELU else {}
        called(spec, a_case(spec, WIDE, **clamp))
        assert set(front.calls.pop()) <= set(parameters(name))


@HAVE_WHEEL
def test_the_installed_wrappers_differ_in_what_an_absent_keyword_means() -> None:
    """dSReLU follows torch's flag where nothing is said, dGLU does not, dSwiGLU knows no such mode."""
    assert parameters(cudnn_dsrelu.NAME)["deterministic"] == "None"
    assert parameters(cudnn_dglu.NAME)["deterministic"] == "False"
    assert "deterministic" not in parameters("grouped_gemm_dswiglu_wrapper_sm100")


def real(name: str) -> Callable[..., Any]:
    """The installed function, or a skip that says what it lacks."""
    try:
        return frontend.wrapper(name)
    except ImportError as error:
        pytest.skip(f"{name} of the installed {frontend.PACKAGE} cannot be imported: {error}")


@HAVE_WHEEL
def test_the_installed_functions_are_asked_and_not_their_version() -> None:
    for name in (cudnn_dsrelu.NAME, cudnn_dglu.NAME):
        assert frontend.takes(real(name))
    assert list(inspect.signature(real(cudnn_dsrelu.NAME)).parameters) == list(parameters(cudnn_dsrelu.NAME))


@HAVE_WHEEL
@pytest.mark.skipif(torch.cuda.is_available(), reason="on a GPU the call would run")
@pytest.mark.parametrize("asked", [False, True])
def test_the_installed_functions_check_our_call_up_to_the_device(asked: bool) -> None:
    """cuDNN looks at every shape, stride and dtype before it looks for a GPU, so that is the one thing it may lack."""
    for spec, name in ((CUDNN_DSRELU, cudnn_dsrelu.NAME), (CUDNN_DGLU, cudnn_dglu.NAME)):
        real(name)
        torch.use_deterministic_algorithms(asked)
        for facts in ({"rows": "padded"}, {"rows": "padded", "prob": "none"}, {"rows": "padded", "bias": False}):
            case = Case.of(E=3, N=96, M=300, H=33, dtype="bf16", regime="integers", facts=facts)
            refused = asked and spec is CUDNN_DGLU and "bias" not in facts
            with pytest.raises(RuntimeError, match="adds up d_bias" if refused else "CUDA is not available"):
                called(spec, case)
