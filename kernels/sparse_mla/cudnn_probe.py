"""What the cuDNN specs need of the installed nvidia-cudnn-frontend and of the device: one probe for all who ask.

Dispatch, skips and the report call the same probe. It reads the package's source, not its version: a version says
nothing about a private class. Reading imports nothing, so a machine without a GPU (or without the package's CuTe DSL)
can say what would be missing elsewhere. On a GPU the modules are then imported too, which is what a call will do.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from numcheck import Available, Capability, Unavailable
from numcheck.capability import Device, Probe

PACKAGE = "nvidia-cudnn-frontend"
WRITTEN_FOR = "1.32.0"
# The kernels use Hopper's own instructions, and the tiles of 9.0: neither 8.x nor 10.x, 12.x can run them.
COMPUTE_CAPABILITY = (9, 0)

FOLDER = "cudnn.deepseek_sparse_attention.sparse_attention_backward"
API, INTERFACE, KERNEL = f"{FOLDER}.api", f"{FOLDER}._interface_sm90", f"{FOLDER}.dsa_bwd_sm90"
MAIN = "FlashAttentionDSABackwardSm90"
PREPROCESS = "_FlashAttentionDSABackwardPreprocessSm90"
POSTPROCESS = "_FlashAttentionDSABackwardPostprocessSm90"


@dataclass(frozen=True)
class Needed:
    """A function of the package, the parameters that it must have in this order, and nothing more.

    name: "function" or "Class.method" (whose self is not listed).
    """

    module: str
    name: str
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _needed(module: str, name: str, parameters: str) -> Needed:
    return Needed(module, name, tuple(parameters.split()))


WRAPPER = (
    _needed(
        API,
        "sparse_attention_backward_wrapper",
        "q kv out dout lse attn_sink topk_idxs softmax_scale topk_length dq dkv block_tile deterministic stream "
        "workspace q_cluster_mode",
    ),
    _needed(INTERFACE, "flash_attn_bwd_sm90_workspace_size", "total_s_q total_s_kv head_dim num_heads"),
)
# What a subclass of the kernel overrides, and what launches it.
LAUNCHED = "mQ mKV mdO mLSE mdPsum mdQ mdKV mTopkIdxs mTopkLength softmax_scale stream"
SCATTER = "acc chunk_idx mTopkIdxs_cur mdKVaccum_cur n_block topK max_seqlen_kv thr_mma tidx"
SUBCLASSED = (
    _needed(INTERFACE, "flash_attn_bwd_sm90_workspace_size", "total_s_q total_s_kv head_dim num_heads"),
    _needed(
        KERNEL,
        f"{MAIN}.__init__",
        "dtype head_dim head_dim_v qhead_per_kvhead tile_m tile_n KV_stage PdS_stage SdP_swapAB dKV_swapAB dQ_swapAB "
        "num_threads have_topk_length max_topk",
    ),
    _needed(KERNEL, f"{MAIN}.__call__", LAUNCHED),
    _needed(KERNEL, f"{MAIN}.scatter_dkv_atomic", SCATTER),
    _needed(
        KERNEL,
        f"{MAIN}.mma_wg0",
        "tiled_mma_SdP tiled_mma_dQ_wg0 mQ mKV mdO mLSE mdPsum mTopkIdxs mTopkLength mdQ sQ sKV sValid sV sdO sP sdS "
        "sLSE sdPsum sKV_q0 sKV_q1 sQ_half sQ_q0 sQ_q1 tma_atom_Q tma_atom_dO tma_atom_dQ mbar_QdO_ptr tidx "
        "softmax_scale_log2 softmax_scale TileSchedulerCls",
    ),
    _needed(
        KERNEL,
        f"{MAIN}.epilogue_dQ",
        "acc_dQ_0 acc_dQ_1 mdQ sQ_half sQ_q0 sQ_q1 tma_atom_dQ tiled_mma_dQ wg_tidx wg_idx m_block head_idx batch_idx",
    ),
    _needed(
        KERNEL,
        f"{MAIN}.epilogue_dQ_wg1",
        "acc_dQ_2 acc_dQ_3 mdQ mdQ_64 sQ_half sQ_64_epi sQ_q2 sQ_192_epi tma_atom_dQ tma_atom_dQ_64 tiled_mma_dQ_128 "
        "tiled_mma_dQ_192 wg_tidx m_block head_idx batch_idx",
    ),
    _needed(KERNEL, f"{PREPROCESS}.__init__", "dtype head_dim arch m_block_size num_threads"),
    _needed(
        KERNEL,
        f"{PREPROCESS}.__call__",
        "mO mdO mdPsum mLSE mLSElog2 mAttnSink mdSink mdQaccum mCuSeqlensQ mSeqUsedQ stream",
    ),
)
SLICED = (
    *SUBCLASSED,
    _needed(KERNEL, f"{POSTPROCESS}.__init__", "dtype hdim_chunk tile_n head_dim num_threads N_hdim_chunks"),
    _needed(KERNEL, f"{POSTPROCESS}.__call__", "mdKVaccum mdKV seqlen_k stream"),
)
# Who calls the scatter, and for which 64-column chunks of d_kv, in the order of the source: with 576 columns 7 and 8
# come last, with 512 only 7. A subclass that keeps something from one chunk to the next relies on it.
CALLER, CHUNKS = "mma_wg1", (0, 1, 2, 3, 4, 5, 6, 7, 8, 7)


def probe(needed: tuple[Needed, ...], also: tuple[str, ...] = ()) -> Probe:
    """The probe of a spec that calls these functions of the package, and imports `also`."""

    def asked(device: Device) -> Capability:
        reason = _device_lacks(device)
        if reason:
            return Unavailable(reason, needs="sm90")
        found = package(needed)
        return _imported(needed, also) if isinstance(found, Available) else found

    return asked


def package(needed: tuple[Needed, ...], root: Path | None = None) -> Capability:
    """Whether the package has these functions; root: the folder of its `cudnn`, or None for the installed one."""
    root = _installed() if root is None else root
    if root is None:
        return Unavailable(f"{PACKAGE} is not installed", needs=PACKAGE)
    for one in needed:
        reason = _lacks(root, one)
        if reason:
            return _unavailable(reason)
    if any(one.name == f"{MAIN}.scatter_dkv_atomic" for one in needed) and (chunks := _chunks(root)) != CHUNKS:
        return _unavailable(f"{KERNEL}.{MAIN}.{CALLER} scatters the chunks {chunks}, not {CHUNKS}")
    return Available()


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(f"{reason}; these specs were written for {PACKAGE} {WRITTEN_FOR}", needs=PACKAGE)


def _device_lacks(device: Device) -> str:
    if device == "cpu":
        return "the cuDNN kernels run on a GPU of compute capability 9.0 only, not on a CPU"
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device is visible to torch"
    capability = torch.cuda.get_device_capability()
    if capability != COMPUTE_CAPABILITY:
        return f"the device has compute capability {capability[0]}.{capability[1]}, but the kernels need exactly 9.0"
    return ""


def _installed() -> Path | None:
    """The folder of the installed `cudnn`, without importing it."""
    spec = importlib.util.find_spec("cudnn")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _imported(needed: tuple[Needed, ...], also: tuple[str, ...]) -> Capability:
    for module in dict.fromkeys((*(one.module for one in needed), *also)):
        try:
            importlib.import_module(module)
        except ImportError as error:
            return Unavailable(f"{module} cannot be imported: {error}", needs=f"{PACKAGE}[cutedsl]")
    return Available()


def _lacks(root: Path, one: Needed) -> str:
    tree = _tree(root, one.module)
    if tree is None:
        return f"{PACKAGE} has no module {one.module}"
    function = _function(tree, one.name.split("."))
    if function is None:
        return f"{one.module} has no {one.name}"
    given = tuple(_parameters(function))[("." in one.name) :]
    if given != one.parameters:
        return f"{one} takes ({', '.join(given)}), not ({', '.join(one.parameters)})"
    return ""


def _tree(root: Path, module: str) -> ast.Module | None:
    path = root.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8")) if path.is_file() else None


def _chunks(root: Path) -> tuple[object, ...]:
    """The chunk numbers with which CALLER calls the scatter, in the order of the source."""
    tree = _tree(root, KERNEL)
    caller = _function(tree, [MAIN, CALLER]) if tree else None
    calls = [n for n in ast.walk(caller) if isinstance(n, ast.Call)] if caller else []
    scatters = [n for n in calls if isinstance(n.func, ast.Attribute) and n.func.attr == "scatter_dkv_atomic"]
    numbers = [n.args[1] for n in sorted(scatters, key=lambda n: n.lineno) if len(n.args) > 1]
    return tuple(number.value if isinstance(number, ast.Constant) else "?" for number in numbers)


def _function(node: ast.AST, path: list[str]) -> ast.FunctionDef | None:
    """The last definition of that name, as Python itself would find it."""
    found = [n for n in ast.iter_child_nodes(node) if getattr(n, "name", "") == path[0]]
    if not found:
        return None
    if len(path) > 1:
        return _function(found[-1], path[1:])
    return found[-1] if isinstance(found[-1], ast.FunctionDef) else None


def _parameters(function: ast.FunctionDef) -> Iterator[str]:
    a = function.args
    for one in (*a.posonlyargs, *a.args, *a.kwonlyargs):
        yield one.arg
    for rest in (a.vararg, a.kwarg):
        if rest is not None:
            yield f"*{rest.arg}"
