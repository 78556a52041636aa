"""The cuDNN specs on a machine without their GPU: the probe, refusals, formulas and maps."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.sparse_mla import cudnn, cudnn_arguments, cudnn_fixed_point, cudnn_probe, cudnn_sliced, cudnn_stock
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_arguments import legal, sizes
from kernels.sparse_mla.cudnn_contracts import most_listed, writers
from kernels.sparse_mla.cudnn_probe import SLICED, SUBCLASSED, WRAPPER, Needed, package
from kernels.sparse_mla.cudnn_workspace import fixed_point_bytes, fixed_point_scratch, stock_bytes, stock_scratch
from numcheck import Available, KernelSpec, Unavailable
from numcheck.errors import NotDeterministic, WorkspaceExceeded
from numcheck.oracles.sparse_mla_cases import named

INSTALLED = cudnn_probe._installed()
installed = pytest.mark.skipif(INSTALLED is None, reason="needs nvidia-cudnn-frontend (its source is read, not run)")
SM90_INTERFACE = "deepseek_sparse_attention/sparse_attention_backward/_interface_sm90.py"
NEEDED = {"wrapper": WRAPPER, "subclassed": SUBCLASSED, "sliced": SLICED}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the modules that the probe reads, to be edited."""
    assert INSTALLED is not None
    for one in {one.module for one in (*WRAPPER, *SLICED)}:
        path = Path(*one.split(".")[1:]).with_suffix(".py")
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(INSTALLED / path, tmp_path / path)
    return tmp_path


def edit(root: Path, module: str, old: str, new: str) -> None:
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{old!r} is not in {path.name}: this test edits nothing"
    path.write_text(text.replace(old, new), encoding="utf-8")


def reason(root: Path, needed: tuple[Needed, ...]) -> str:
    found = package(needed, root)
    assert isinstance(found, Unavailable)
    assert found.needs == cudnn_probe.PACKAGE
    return found.reason


@installed
@pytest.mark.parametrize("needed", NEEDED.values(), ids=NEEDED)
def test_the_installed_package_has_what_the_specs_were_written_for(needed: tuple[Needed, ...]) -> None:
    assert package(needed) == Available()


@installed
def test_a_missing_method_is_named(copy: Path) -> None:
    edit(copy, cudnn_probe.KERNEL, "def scatter_dkv_atomic(", "def scatter_dkv(")
    assert "has no FlashAttentionDSABackwardSm90.scatter_dkv_atomic" in reason(copy, SUBCLASSED)
    assert package(WRAPPER, copy) == Available(), "the wrapper does not need it"


@installed
def test_an_added_argument_is_named(copy: Path) -> None:
    edit(copy, cudnn_probe.KERNEL, "max_seqlen_kv: Int32,  # logical", "max_seqlen_kv: Int32, gate: Int32,  # logical")
    assert "scatter_dkv_atomic takes" in reason(copy, SUBCLASSED)
    assert "gate" in reason(copy, SUBCLASSED)


@installed
def test_an_argument_of_the_wrapper_that_is_gone_is_named(copy: Path) -> None:
    edit(copy, cudnn_probe.API, "    workspace: Optional[torch.Tensor] = None,\n    q_cluster", "    q_cluster")
    assert "sparse_attention_backward_wrapper takes" in reason(copy, WRAPPER)


@installed
def test_chunks_scattered_in_another_order_are_named(copy: Path) -> None:
    edit(copy, cudnn_probe.KERNEL, "acc_dKV_s0,\n                    0,", "acc_dKV_s0,\n                    2,")
    assert "scatters the chunks (2, 1, 2" in reason(copy, SUBCLASSED)


@installed
def test_a_version_that_lies_is_not_believed(copy: Path) -> None:
    (copy / "__init__.py").write_text('__version__ = "1.32.0"\n', encoding="utf-8")
    edit(copy, cudnn_probe.KERNEL, "def scatter_dkv_atomic(", "def scatter_dkv(")
    assert isinstance(package(SUBCLASSED, copy), Unavailable)
    (copy / "__init__.py").write_text('__version__ = "0.0.1"\n', encoding="utf-8")
    edit(copy, cudnn_probe.KERNEL, "def scatter_dkv(", "def scatter_dkv_atomic(")
    assert package(SUBCLASSED, copy) == Available()


def test_a_package_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "has no module" in reason(tmp_path, WRAPPER)


@pytest.mark.parametrize("spec", cudnn.SPECS, ids=lambda spec: spec.name)
def test_a_cpu_is_told_what_is_needed(spec: KernelSpec) -> None:
    found = spec.available("cpu")
    assert isinstance(found, Unavailable)
    assert found.needs == "sm90"
    assert "9.0" in found.reason


@pytest.mark.parametrize(("capability", "works"), [((9, 0), True), ((10, 0), False), ((8, 9), False), ((9, 1), False)])
def test_only_compute_capability_9_0_will_do(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], works: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    found = cudnn_probe._device_lacks("cuda")
    assert (found == "") == works, found


def tensors(S_q: int = 3, S_k: int = 5, H: int = 2, D: int = 512, topk: int = 4, **changed: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"dtype": torch.bfloat16}
    given = {
        "q": torch.zeros(S_q, H, D, **data),
        "kv": torch.zeros(S_k, D, **data),
        "topk_idxs": torch.zeros(S_q, topk, dtype=torch.int32),
        "topk_length": None,
        "sink": None,
        "out": torch.zeros(S_q, H, 512, **data),
        "lse": torch.zeros(S_q, H),
        "d_out": torch.zeros(S_q, H, 512, **data),
        "softmax_scale": 0.04,
        "value_dim": 512,
    }
    return given | changed


BAD = {
    "fp32 data": ({"q": torch.zeros(3, 2, 512)}, TypeError, "float32"),
    "another dim": ({"q": torch.zeros(3, 2, 256, dtype=torch.bfloat16), "kv": torch.zeros(5, 256)}, ValueError, "512"),
    "strided": ({"kv": torch.zeros(512, 5, dtype=torch.bfloat16).T}, ValueError, "contiguous"),
    "wide index": ({"topk_idxs": torch.zeros(3, 4, dtype=torch.int64)}, TypeError, "int32"),
    "lse of wrong shape": ({"lse": torch.zeros(2, 3)}, ValueError, "lse has shape"),
    "on a cpu": ({}, ValueError, "cuda"),
}


@pytest.mark.parametrize(("changed", "error", "says"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("spec", cudnn.SPECS, ids=lambda spec: spec.name)
def test_bad_arguments_raise_first(
    spec: KernelSpec, changed: dict[str, Any], error: type[Exception], says: str
) -> None:
    assert spec.vjp is not None
    with pytest.raises(error, match=says):
        spec.vjp(**tensors(**changed))


def on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_arguments, "DEVICE", "cpu")


def test_one_head_and_an_odd_address_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_any_device(monkeypatch)
    assert sizes(**tensors()) == Sizes(3, 5, 2, 512, 512, 4)
    with pytest.raises(ValueError, match="d_kv_dtype"):
        sizes(**tensors(d_kv_dtype="fp32"))
    with pytest.raises(ValueError, match="1 heads"):
        sizes(**tensors(H=1))
    whole = torch.zeros(5 * 512 + 3, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="kv starts at an address"):
        sizes(**tensors(kv=whole[3:].view(5, 512)))


def test_a_case_is_illegal_where_the_call_is_refused() -> None:
    good = named(3, 5, 2, 512, 512, 4, dtype="bf16")
    assert legal(good) is None
    assert legal(good.but(offset=8)) is None
    for bad in (
        good.but(D=256, D_v=256),
        good.but(D=576, D_v=576),
        good.but(H=1),
        good.but(layout="strided"),
        good.but(offset=1),
        good.but(d_kv="fp32"),
    ):
        assert legal(bad), bad.line()
    assert all(spec.illegal(good.but(dtype="fp32")) for spec in cudnn.SPECS)


def targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else []


@installed
def test_the_scratch_is_what_the_package_asks_for() -> None:
    assert INSTALLED is not None
    # The package's own functions and constants, taken from its source: the module itself needs the CuTe DSL.
    tree = ast.parse((INSTALLED / SM90_INTERFACE).read_text(encoding="utf-8"))
    wanted = {"_round_up", "_workspace_extents", "flash_attn_bwd_sm90_workspace_size"}
    wanted |= {"_M_BLOCK_SIZE", "_N_BLOCK_SIZE", "_HEAD_DIM_MULTIPLE"}
    kept = [n for n in tree.body if wanted & {getattr(n, "name", ""), *(ast.unparse(t) for t in targets(n))}]
    scope: dict[str, Any] = {"Tuple": tuple, "torch": torch, "ws_align": lambda size: -(-size // 128) * 128}
    exec(compile(ast.Module(kept, []), SM90_INTERFACE, "exec"), scope)
    theirs = scope["flash_attn_bwd_sm90_workspace_size"]
    for S_q, S_k, H, D in ((257, 256, 64, 512), (1, 1, 2, 576), (129, 1000, 128, 576), (16384, 16384, 64, 512)):
        assert stock_scratch(Sizes(S_q, S_k, H, D, 512, 8)) == theirs(S_q, S_k, D, H)
    assert stock_scratch(Sizes(257, 256, 64, 512, 512, 8)) == 688128  # the example of the package's own notes


def test_writers_follow_the_index_data() -> None:
    case = named(3, 5, 128, 512, 512, 4, dtype="bf16", indices="one_row")
    assert most_listed(case) == 12, "three queries, four slots each, all the same row"
    assert writers(case) == {"d_q": 1, "d_kv": 24, "d_sink": 8}, "each of two head tiles adds"
    assert most_listed(case.but(indices="nothing")) == 0
    assert writers(named(65, 5, 64, 512, 512, 4, dtype="bf16"))["d_sink"] == 16


def test_stock_refuses_a_request_for_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(NotDeterministic, match="cudnn_fixed_point"):
        cudnn_stock.vjp(**tensors())


@pytest.mark.parametrize("vjp", [cudnn_fixed_point.vjp, cudnn_sliced.vjp])
def test_what_is_deterministic_takes_the_request_and_looks_at_its_arguments(
    monkeypatch: pytest.MonkeyPatch, vjp: Any
) -> None:
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    with pytest.raises(ValueError, match="cuda"):
        vjp(**tensors())


SHAPES = [Sizes(16384, 16384, 64, 512, 512, 2048), Sizes(4096, 16384, 128, 576, 512, 2048), Sizes(1, 1, 2, 512, 512, 1)]


@pytest.mark.parametrize("n", [*SHAPES, Sizes(16384, 524288, 64, 576, 512, 2048)], ids=str)
def test_the_fixed_point_takes_at_most_a_twentieth_more_than_stock(n: Sizes) -> None:
    assert n.S_q < 64 or fixed_point_bytes(n, True) <= 1.05 * stock_bytes(n, True)


@pytest.mark.parametrize("n", SHAPES, ids=str)
def test_the_fixed_point_s_scratch_is_cut_without_a_gap(n: Sizes) -> None:
    s = cudnn_fixed_point._Scratch.of(n, torch.device("cpu"))
    parts = (s.D, s.lse_log2, s.words, s.lengths, s.flags)
    assert sum(part.numel() for part in parts) * 4 == fixed_point_scratch(n)
    assert len(s.lengths) >= n.S_q
    assert all(part.data_ptr() % 16 == 0 for part in parts), "the kernel's vector loads rely on it"
    assert s.started.numel() + s.tables[3].numel() == s.words.numel()
    assert sum(table.numel() * table.element_size() for table in s.tables) == 4 * 5 * s.rows


def test_sums_that_no_proof_covers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    on_any_device(monkeypatch)
    monkeypatch.setattr(cudnn_fixed_point, "MOST_ADDENDS", 11)
    with pytest.raises(ValueError, match="12 additions to a KV row"):
        cudnn_fixed_point.vjp(**tensors())
    monkeypatch.setattr(cudnn_fixed_point, "MOST_ADDENDS", 12)
    with pytest.raises(WorkspaceExceeded, match="S_k=5"):
        cudnn_fixed_point.vjp(**tensors(), budget=1000)
