"""Patches: attributes replaced for a while and put back in reverse order."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """Attributes set on instances, classes or modules; `restore` undoes them, last first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Shadow `owner.name`; an attribute that `owner` itself did not have is deleted again on restore."""
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def restore(self) -> None:
        """Put everything back."""
        while self._undo:
            owner, name, value = self._undo.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
