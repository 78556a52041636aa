"""Which inputs reach a function whose result does not scale by powers of two, found while an oracle is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

# A kernel may well compute one of these in another form (exp2(s * c - m * c) for exp(s - m)), whose rounding moves with
# the size of what goes in, even where the result stays 1.
_EXPONENTIALS = ("exp", "exp2", "expm1", "rpow", "sigmoid", "logsigmoid", "softplus", "softmax", "silu", "gelu", "mish")
_LOGARITHMS = ("log", "log2", "log10", "log1p", "logsumexp", "logaddexp", "log_softmax")
_CIRCULAR = ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
CURVED = frozenset((*_EXPONENTIALS, *_LOGARITHMS, *_CIRCULAR, "erf", "erfc", "erfinv"))


class Curves(TorchFunctionMode):
    """While inside, notes in `seen` the curved functions whose argument depends on a tensor that requires grad."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.__name__.strip("_")
        curved = name in CURVED or (name in ("pow", "float_power") and not _root(args))
        if curved and any(isinstance(a, Tensor) and a.requires_grad for a in args):
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def _root(args: tuple[Any, ...]) -> bool:
    """Whether a power is whole or a square root, which scale exactly by powers of four."""
    return len(args) > 1 and isinstance(args[1], int | float) and float(2 * args[1]).is_integer()
