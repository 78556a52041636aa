"""A reverse tape over mpmath numbers: it differentiates an oracle's twin, so that nobody types the VJP twice.

Beside each value and each adjoint runs its summed-term size: the same sums with every term's magnitude. An FP64
result can be no better than unit roundoff times that size, so errors are judged relative to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from numcheck.errors import Refused

Number = Any


class Var:
    """A number on the tape: its value, its summed-term size, and how its adjoint flows back to its parents."""

    __slots__ = ("adjoint", "adjoint_size", "parents", "size", "value")

    def __init__(self, value: Number, size: Number, parents: Sequence[tuple[Var, Number]] = ()) -> None:
        self.value, self.size, self.parents = value, size, parents
        self.adjoint: Number = 0
        self.adjoint_size: Number = 0

    def __add__(self, other: Any) -> Var:
        return _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Var:
        return _sum(self, other, -1)

    def __rsub__(self, other: Any) -> Var:
        return _sum(-self, other, 1)

    def __neg__(self) -> Var:
        return Var(-self.value, self.size, [(self, -1)])

    def __mul__(self, other: Any) -> Var:
        if isinstance(other, Var):
            return Var(self.value * other.value, self.size * other.size, [(self, other.value), (other, self.value)])
        return Var(self.value * other, self.size * abs(other), [(self, other)])

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Var:
        if isinstance(other, Var):
            inverse = other.__pow__(-1)
            return self.__mul__(inverse)
        # mpmath's own one: 1 / other of two Python numbers would be rounded to FP64.
        return Var(self.value / other, self.size / abs(other), [(self, self.value.context.one / other)])

    def __rtruediv__(self, other: Any) -> Var:
        return Var(other * self.value**-1, abs(other) * self.size / self.value**2, [(self, -other * self.value**-2)])

    def __pow__(self, exponent: Any) -> Var:
        if isinstance(exponent, Var):
            raise Refused("a power whose exponent is differentiated; write it as exp(b * log(a))")
        return _applied(self, self.value**exponent, exponent * self.value ** (exponent - 1) if exponent else 0)

    def __abs__(self) -> Var:
        """The slope at zero is 0, as torch has it; a twin that means another side compares and says so."""
        sign = (self.value > 0) - (self.value < 0)
        return Var(abs(self.value), self.size, [(self, sign)])

    # Comparisons are by value, so max, min and the twin's own branches pick a side; equality takes the twin's side.
    def __lt__(self, other: Any) -> bool:
        return bool(self.value < _value(other))

    def __le__(self, other: Any) -> bool:
        return bool(self.value <= _value(other))

    def __gt__(self, other: Any) -> bool:
        return bool(self.value > _value(other))

    def __ge__(self, other: Any) -> bool:
        return bool(self.value >= _value(other))


class Functions:
    """The `mp` that a twin gets: mpmath's functions where the tape knows their slope, its constants as they are."""

    def __init__(self, context: Any) -> None:
        self._mp = context
        self._slopes: dict[str, Callable[[Number, Number], Number]] = {
            "exp": lambda x, y: y,
            "expm1": lambda x, y: y + 1,
            "log": lambda x, y: 1 / x,
            "log1p": lambda x, y: 1 / (1 + x),
            "sqrt": lambda x, y: 1 / (2 * y),
            "tanh": lambda x, y: 1 - y * y,
            "sin": lambda x, y: context.cos(x),
            "cos": lambda x, y: -context.sin(x),
            "erf": lambda x, y: 2 / context.sqrt(context.pi) * context.exp(-x * x),
        }

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._mp, name)
        if not callable(function):
            return function

        def applied(*args: Any) -> Any:
            if not any(isinstance(a, Var) for a in args):
                return function(*args)
            if name not in self._slopes or len(args) != 1:
                raise Refused(f"the twin calls mp.{name}; the tape knows {', '.join(self._slopes)}, fabs, fsum, power")
            x = args[0].value
            y = function(x)
            return _applied(args[0], y, self._slopes[name](x, y))

        return applied

    def fabs(self, x: Any) -> Any:
        return abs(x)

    def power(self, x: Any, exponent: Any) -> Any:
        return x**exponent

    def fsum(self, terms: Iterable[Any]) -> Any:
        total: Any = self._mp.mpf(0)
        for term in terms:
            total = total + term
        return total


def backward(roots: Iterable[tuple[Var, Number]]) -> None:
    """Fill the adjoints of everything that the roots rest on, for the loss sum of root * seed."""
    roots = list(roots)
    for root, seed in roots:
        root.adjoint += seed
        root.adjoint_size += abs(seed)
    for node in reversed(_sorted([root for root, _ in roots])):
        for parent, slope in node.parents:
            parent.adjoint += node.adjoint * slope
            parent.adjoint_size += node.adjoint_size * abs(slope)


def _sorted(roots: list[Var]) -> list[Var]:
    """Parents before children, without recursion: chains are as long as the sums they come from."""
    seen: set[int] = set()
    order: list[Var] = []
    stack = [(root, False) for root in roots]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(parent, False) for parent, _ in node.parents]
    return order


def _sum(a: Var, b: Any, sign: int) -> Var:
    if isinstance(b, Var):
        return Var(a.value + sign * b.value, a.size + b.size, [(a, 1), (b, sign)])
    return Var(a.value + sign * b, a.size + abs(b), [(a, 1)])


def _applied(x: Var, value: Number, slope: Number) -> Var:
    return Var(value, max(abs(value), abs(slope) * x.size), [(x, slope)])


def _value(x: Any) -> Number:
    return x.value if isinstance(x, Var) else x
