"""Load: kernels from a module, one of its names, or a file; each remembers where it came from."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from numcheck.errors import InvalidSpec, NumcheckError
from numcheck.patience import Interrupted, uninterrupted
from numcheck.spec import Fault, KernelSpec

T = TypeVar("T")

# Names under which a module lists its kernels, or its declared faults, in the order to judge them in.
LISTS = ("ALL", "SPECS")
FAULTS = "FAULTS"


def load(sources: str | Sequence[str]) -> tuple[KernelSpec, ...]:
    """The kernels that `sources` name, in order.

    A source is a module ("kernels"), a file ("my_mhc.py"), or either with ":NAME" of one KernelSpec or a tuple of them.
    Without a NAME it is the module's ALL or SPECS, or else every KernelSpec that it holds. `origin` of each spec is its
    source, a path made absolute, so that a fresh process finds it again.

    Raises InvalidSpec where there is no such file, module, name or kernel, where importing it raises, and where two
    kernels share a name.
    """
    found = [spec for source in _each(sources) for spec in _kernels(source)]
    names = [spec.name for spec in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSpec(
                f"{', '.join(_each(sources))}: two kernels are called {name!r}; rename one, since names tell them apart"
            )
    return tuple(found)


def faults(sources: str | Sequence[str]) -> tuple[Fault, ...]:
    """The declared faults that `sources` list under the name FAULTS; none where there is no such list."""
    listed = ((source, getattr(_module(_split(source)[0]), FAULTS, ())) for source in _each(sources))
    return tuple(fault for source, value in listed for fault in _of_type(Fault, value))


def all_faults(sources: str | Sequence[str]) -> tuple[Fault, ...]:
    """The declared faults of `sources` and, where one is a package, of the modules called `faults` in it and below it.

    Faults lie beside the kernels that they are edits of, in modules that nothing of users imports.
    """
    found = list(faults(sources))
    for source in _each(sources):
        for name in _fault_modules(_module(_split(source)[0])):
            found += _of_type(Fault, getattr(importlib.import_module(name), FAULTS, ()))
    return tuple({fault.spec.name: fault for fault in found}.values())


def _fault_modules(package: ModuleType) -> list[str]:
    """Names of the modules called `faults` in a package and in the packages that lie in it."""
    found = []
    for info in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        if info.name.rpartition(".")[2] == FAULTS.lower():
            found.append(info.name)
        elif info.ispkg:
            found += _fault_modules(importlib.import_module(info.name))
    return found


def find(source: str, name: str) -> KernelSpec:
    """The one kernel called `name` that `source` names; raises InvalidSpec where there is none."""
    specs = load(source)
    for spec in specs:
        if spec.name == name:
            return spec
    raise InvalidSpec(f"{source} has no kernel {name!r}; it has {', '.join(s.name for s in specs)}")


def folder(source: str) -> Path | None:
    """The folder in which a source's file lies, or None for a module without one."""
    file = getattr(_module(_split(source)[0]), "__file__", None)
    return Path(file).resolve().parent if file else None


def _each(sources: str | Sequence[str]) -> Sequence[str]:
    return (sources,) if isinstance(sources, str) else sources


def _split(source: str) -> tuple[str, str]:
    """A source's module or path, and its NAME or ""."""
    place, colon, name = source.rpartition(":")
    # A drive letter ends in a colon too, but no path that it starts is a Python name.
    return (place, name) if colon and name.isidentifier() else (source, "")


def _kernels(source: str) -> list[KernelSpec]:
    place, name = _split(source)
    module = _module(place)
    if name and not hasattr(module, name):
        raise InvalidSpec(
            f"{source}: {place} has no {name!r}; name one of {', '.join(_names(module)) or 'its kernels'}"
        )
    lists = [getattr(module, listed) for listed in LISTS if hasattr(module, listed)]
    value: object = getattr(module, name) if name else lists[0] if lists else tuple(vars(module).values())
    specs = _of_type(KernelSpec, value)
    if not specs:
        raise InvalidSpec(
            f"{source} holds no KernelSpec; assign one at module level (spec = KernelSpec(...)), or a tuple called ALL"
        )
    origin = str(Path(place).resolve()) if _is_path(place) else place
    return [spec.but(origin=f"{origin}:{name}" if name else origin) for spec in specs]


def _names(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, KernelSpec) or name in LISTS]


def _of_type(wanted: type[T], value: object) -> list[T]:
    values = value if isinstance(value, Iterable) else (value,)
    # One thing may go by two names; specs hold mappings and have no hash, so identity tells them apart.
    return list({id(v): v for v in values if isinstance(v, wanted)}.values())


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or "\\" in place


def _module(place: str) -> ModuleType:
    try:
        with uninterrupted():
            return _from_path(Path(place).resolve()) if _is_path(place) else _from_name(place)
    except NumcheckError:
        raise
    except KeyboardInterrupt:
        raise
    except Interrupted as error:
        raise InvalidSpec(f"{place}: importing it raised {error}") from error
    # Also sys.exit() and the outcomes of a test runner: a spec file that skips itself has no kernel to judge.
    except BaseException as error:
        raise InvalidSpec(f"{place}: importing it raised {type(error).__name__}: {error}") from error


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidSpec(
                f"no module {name!r}; give an importable module, or a path that ends in .py "
                f"(modules are looked for on sys.path, which the `numcheck` command and `python -m pytest` start with "
                f"the current folder)"
            ) from None
        raise


def _from_path(path: Path) -> ModuleType:
    if path.is_dir() and (path / "__init__.py").is_file():
        raise InvalidSpec(f"{path} is a package; give its module name, or one .py file")
    if not path.is_file():
        raise InvalidSpec(f"no file {path}; give an existing .py file or a module")
    # Two files of one stem must not shadow each other, and Triton reads a kernel's source through its module.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise InvalidSpec(f"{path} is no Python source; give a .py file")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    # As for a script, files beside it can be imported.
    sys.path.append(str(path.parent))
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
