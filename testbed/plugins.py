"""What a name in an experiment file stands for, and how a stranger's file or package adds to it.

A `Registry` knows the things of one kind (systems, models, data sets, devices, profiles, codecs, fabrics) by their
names. The package's own are the modules of one folder, imported when a name is first looked up; others come from
plug-ins:

1. `plugins = ["mylab.sign", "./resnet.py"]` in an experiment file, `--plugin` on the command line, or `load` from
   Python: a module that can be imported, a Python file, or a folder with an `__init__.py`;
2. an installed package with an entry point in the group `testbed.plugins`.

A plug-in is code that the user chose to run; it is imported, and what it registers can be named from then on. Every
process that opens an experiment loads the same plug-ins, so that a name means the same to the driver, a job and a Ray
actor.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from testbed.errors import InputError, TestbedError, nearest

OWN = Path(__file__).resolve().parent
GROUP = "testbed.plugins"
WHAT = "a plug-in is a .py file, a folder with an __init__.py, or a module's name"
HOW = "one of your own comes in with plugins = [...] or --plugin"

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """A plug-in that is loaded; `sha256` is its file's, or of all modules of a package; "" where it has no file."""

    name: str
    file: str
    sha256: str


_registries: list[Registry] = []
_brought: set[str] = set()  # the files that registered something, neither the testbed's nor a plug-in's


class Registry(Mapping[str, T], Generic[T]):
    """The things of one kind by name.

    Parameters
    ----------
    kind : what they are, as an error says it, e.g. "system"
    folder : a package whose modules register the testbed's own when they are imported; "" for none
    """

    def __init__(self, kind: str, folder: str = "") -> None:
        self.kind = kind
        self._folder = folder
        self._found: dict[str, T] = {}
        self._origins: dict[str, str] = {}  # the file that registered each
        _registries.append(self)

    def add(self, name: str, thing: T, origin: str) -> None:
        """Register `thing`, defined in module `origin`; that file may do so again (a notebook's cell, a new process).

        Raises
        ------
        InputError
            Another file has registered that name, or it is none.
        """
        place = _file_of(origin)
        if not isinstance(name, str) or not name:
            raise InputError(f"{place}: a {self.kind} is called {name!r}; a name is a string")
        if not (_importing or Path(place).is_relative_to(OWN)):
            _brought.add(place)
        before = self._origins.get(name, place)
        if before != place:
            raise InputError(f"{place}: there is a {self.kind} '{name}' already, in {before}; choose another name")
        self._found[name], self._origins[name] = thing, place

    def find(self, name: str) -> T:
        """What `name` stands for.

        Raises
        ------
        InputError
            Nothing; the message has the nearest name, all known ones, and the plug-ins that were looked at.
        """
        self._import_all()
        if name not in self._found:
            raise InputError(f"unknown {self.kind} '{name}'{nearest(name, self._found)} ({_looked_at()})")
        return self._found[name]

    def of(self, origin: str) -> list[str]:
        """The names that the file `origin` has registered."""
        return [name for name, place in self._origins.items() if place == origin]

    def __getitem__(self, name: str) -> T:
        self._import_all()
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        self._import_all()
        return iter(self._found)

    def __len__(self) -> int:
        self._import_all()
        return len(self._found)

    def _import_all(self) -> None:
        """Import the folder's modules, once; while they are imported they see what is registered so far."""
        folder, self._folder = self._folder, ""
        if folder:
            package = importlib.import_module(folder)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{folder}.{module.name}")


_loaded: dict[str, Plugin] = {}
_importing = 0


def loaded() -> tuple[Plugin, ...]:
    """The plug-ins that this process has loaded, in order."""
    return tuple(_loaded.values())


def load(names: Sequence[str], base: Path = Path()) -> tuple[str, ...]:
    """Import plug-ins, and those of installed packages; a second call with the same names does nothing.

    Parameters
    ----------
    names : modules ("mylab.sign"), or files ("./resnet.py") as seen from the folder `base`

    Returns
    -------
    The names as any process on this machine understands them: files as absolute paths.

    Raises
    ------
    InputError
        There is no such module or file, or it fails when it is imported.
    """
    for point in metadata.entry_points(group=GROUP):
        if point.value not in _loaded:
            _loaded[point.value] = _plugin(point.value, _imported(point.value.partition(":")[0], point.load))
    return tuple(_load(name, base) for name in names)


@dataclass(frozen=True)
class Interactive:
    """What the script or notebook that runs has registered itself.

    Attributes
    ----------
    names : "system 'sign'" and so on, of a script with those of the modules that it imports; empty when it has
        registered nothing
    file : the script; "" in a notebook or at a prompt, whose definitions no other process can import
    """

    names: tuple[str, ...]
    file: str


def interactive() -> Interactive:
    """What `__main__` has registered."""
    here = _file_of("__main__")
    file = here if here.endswith(".py") and Path(here).is_file() else ""
    places = sorted(_brought) if file else [here]
    names = tuple(f"{each.kind} '{name}'" for each in _registries for place in places for name in each.of(place))
    return Interactive(names, file)


def importing() -> bool:
    """Whether a plug-in is being imported at this moment."""
    return _importing > 0


def _load(name: str, base: Path) -> str:
    if name.endswith(".py") or "/" in name or (Path(name).suffix and os.path.isfile(base / name)):  # noqa: PTH113 - of any name
        path = (base / name).resolve()
        if path.is_dir():
            path /= "__init__.py"
        name = str(path)
        if name not in _loaded:
            if not path.is_file():
                raise InputError(f"plug-in {name}: no such file")
            if path.suffix != ".py":
                raise InputError(f"plug-in {name}: {WHAT}")
            _loaded[name] = _plugin(name, _imported(name, lambda: _run_file(path)))
    elif name not in _loaded:
        here = str(Path.cwd())
        if here not in sys.path:  # a console script has its own folder there instead
            sys.path.append(here)
        _loaded[name] = _plugin(name, _imported(name, lambda: importlib.import_module(name)))
    return name


def _imported(name: str, work: Callable[[], object]) -> ModuleType | None:
    """What importing a plug-in gives; whatever it raises is one line that names it."""
    global _importing
    _importing += 1
    try:
        found = work()
    except TestbedError as error:
        raise InputError(f"plug-in {name}: {error}") from error
    except (Exception, SystemExit) as error:  # any code may be in there
        raise InputError(f"plug-in {name} cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        _importing -= 1
    return found if isinstance(found, ModuleType) else sys.modules.get(getattr(found, "__module__", ""))


def _run_file(path: Path) -> ModuleType:
    """Import a file as a module whose name is its own, so that what it defines can be found again."""
    main = sys.modules.get("__main__")
    if main is not None and _file_of("__main__") == str(path):
        return main  # the script that runs has registered what it defines
    whole = path.name == "__init__.py"  # a folder, whose modules import each other
    stem = path.parent.name if whole else path.stem
    name = f"testbed_plugin_{stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    inside = [str(path.parent)] if whole else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=inside)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _plugin(name: str, module: ModuleType | None) -> Plugin:
    file = getattr(module, "__file__", None) or ""
    return Plugin(name, file, _sha256(Path(file)) if file and Path(file).is_file() else "")


def _sha256(file: Path) -> str:
    """Of a module's text; of a package, of all its modules with their names."""
    if file.name != "__init__.py":
        return hashlib.sha256(file.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    for each in sorted(file.parent.rglob("*.py")):
        text = each.read_bytes()
        digest.update(f"{each.relative_to(file.parent)} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _file_of(module: str) -> str:
    """The file that a module is in; the module's name where it has none (a notebook)."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return str(Path(file).resolve()) if file else module


def _looked_at() -> str:
    return f"plug-ins loaded: {', '.join(_loaded)}" if _loaded else f"no plug-ins loaded; {HOW}"
