"""Parts by name: those that sketchfed brings, those that installed packages announce, and `package.module:Thing`.

An installed package announces a part by an entry point, such as this one in its pyproject.toml:

    [project.entry-points."sketchfed.codecs"]
    halves = "my_package.codecs:Halves"
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getdoc, isabstract, signature
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_origin

from sketchfed.errors import InputError, SketchfedError, UnknownNameError

log = logging.getLogger("sketchfed")

P = TypeVar("P")


def short(name: str) -> str:
    """A name as labels show it: of `package.module:Thing` the part after the colon.

    >>> short("my_package.codecs:Halves"), short("srht")
    ('Halves', 'srht')
    """
    return name.rpartition(":")[2]


def summary(part: object) -> str:
    """What a part is, in a few words: its `summary`, or the first line of its docstring."""
    text = getattr(part, "summary", None) or getdoc(part) or ""
    return str(text).strip().partition("\n")[0]


class Registry(Mapping[str, P], Generic[P]):
    """All parts of one kind, by name.

    A name is looked for among the built-in parts first, then among the entry points of `group`. A built-in part is never
    replaced. `package.module:Thing` finds a part that nobody announced; modules of the current folder are found too.

    With a `base`, parts are concrete subclasses of it, or of one of several, that have all of its class variables. Without one,
    they are functions.

    A built-in part may itself be given as a reference; its module is then imported when it is asked for.

    `registry[name]` and `name in registry` do not import other parts. Iterating imports all of them and leaves out those that
    cannot be used, with a warning. `names` lists everything and imports nothing.

    >>> rounding = Registry("rounding rule", {"up": round}, group="example.rounding")
    >>> rounding["math:floor"](2.5), rounding.origin("up"), rounding.origin("math:floor")
    (2, 'sketchfed', 'math:floor')
    """

    def __init__(self, kind: str, built_in: Mapping[str, P | str], *, group: str, base: type | tuple[type, ...] = ()) -> None:
        self.kind, self.group = kind, group
        self.bases = base if isinstance(base, tuple) else (base,)
        self.built_in = dict(built_in)
        self._reported: set[str] = set()

    def __getitem__(self, name: str) -> P:
        if not isinstance(name, str):
            raise UnknownNameError(self.kind, name, self.choices())
        known = self.built_in.get(name, name)
        if not isinstance(known, str):
            return known
        if ":" in known:
            return self._checked(resolve(known, self.kind, self._wanted), f"{self.kind} {known!r}")
        announced = self._announced().get(name, [])
        if not announced:
            raise UnknownNameError(self.kind, name, [*self._with_a_colon(name), *self.choices()])
        return self._load(name, announced)

    def __contains__(self, name: object) -> bool:
        """Whether this name is known, or is a reference such as `package.module:Thing`. Nothing is imported."""
        return isinstance(name, str) and (name in self.built_in or ":" in name or name in self._announced())

    def is_built_in(self, name: object) -> bool:
        """Whether a name is one of sketchfed's own parts."""
        return name in self.built_in

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self.names() if self._usable(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def names(self) -> list[str]:
        """The names of the built-in parts, then those that packages announce. Nothing is imported."""
        return [*self.built_in, *(name for name in sorted(self._announced()) if name not in self.built_in)]

    def choices(self) -> list[str]:
        """What can be written as a name, for error messages."""
        return [*self.names(), f"package.module:{self._wanted} for your own"]

    def origin(self, name: str) -> str:
        """Where a part comes from: 'sketchfed', 'package 1.2 (entry point)', or the reference itself."""
        if name in self.built_in:
            return "sketchfed"
        if ":" in name:
            return name
        announced = self._announced().get(name, [])
        if not announced:
            raise UnknownNameError(self.kind, name, self.choices())
        return ", ".join(f"{_distribution(point)} (entry point)" for point in announced)

    def hidden(self) -> dict[str, str]:
        """Entry points that have the name of a built-in part, which wins, and the packages that announce them."""
        found = {name: points for name, points in self._announced().items() if name in self.built_in}
        return {name: ", ".join(_distribution(point) for point in points) for name, points in sorted(found.items())}

    def name_of(self, part: P) -> str:
        """A name under which `registry[name]` finds this part: its short name if it has one, else `package.module:Thing`."""
        reference = f"{getattr(part, '__module__', '?')}:{getattr(part, '__qualname__', '?')}"
        for name, known in self.built_in.items():
            if known is part or known == reference:
                return name
        for name, points in self._announced().items():
            if name not in self.built_in and [point.value.replace(" ", "") for point in points] == [reference]:
                return name
        return reference

    @staticmethod
    def _with_a_colon(name: str) -> list[str]:
        """`package.module:Thing` for a dotted name, which is what its author meant."""
        module, dot, thing = name.rpartition(".")
        return [f"{module}:{thing}"] if dot and module and thing else []

    @property
    def _wanted(self) -> str:
        return "Class" if self.bases else "function"

    def _announced(self) -> dict[str, list[EntryPoint]]:
        announced: dict[str, list[EntryPoint]] = {}
        for point in _entry_points(self.group, tuple(sys.path)):
            announced.setdefault(point.name, []).append(point)
        return announced

    def _load(self, name: str, points: list[EntryPoint]) -> P:
        if len(points) > 1:
            listed = " and ".join(f"{_distribution(point)} ({point.value})" for point in points)
            raise InputError(
                f"{self.kind} {name!r} is announced by {listed}. Say which one you mean: write its package.module:"
                f"{self._wanted} in place of the name, or uninstall the other package."
            )
        (point,) = points
        who = f"{self.kind} {name!r} of {_distribution(point)} (entry point {point.value})"
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise InputError(
                f"{who} cannot be loaded: {type(error).__name__}: {error}. Mend or update that package, or uninstall it."
            ) from error
        part = self._checked(found, who)
        own = getattr(part, "name", name) if self.bases else name
        if own != name:
            raise InputError(
                f"{who} calls itself {own!r}, and messages, tables and packets would show that name. Write name = {name!r} in "
                f"its class, or announce it as {own!r}."
            )
        return part

    def _checked(self, found: Any, who: str) -> P:
        if self.bases:
            check_class(found, who, self.bases)
        else:
            _check_callable(found, who, self.kind)
        return found  # type: ignore[no-any-return]

    def _usable(self, name: str) -> bool:
        try:
            self[name]
        except InputError as error:
            if name not in self._reported:
                self._reported.add(name)
                log.warning("left out: %s", error)
            return False
        return True


def resolve(reference: str, kind: str, wanted: str = "function") -> Any:
    """What `package.module:function` names. `kind` says in errors what it was wanted for, such as "data set".

    Modules of the current folder are found too, after those that are installed.

    >>> resolve("math:sqrt", "activation")(9)
    3.0
    """
    module_name, colon, attribute = reference.partition(":")
    if not (colon and all(part.isidentifier() for part in [*module_name.split("."), *attribute.split(".")])):
        raise InputError(
            f"{reference!r} does not name {_article(kind)}: write 'package.module:{wanted}', the module's dotted name, a "
            f"colon, and the name of the {wanted.lower()}."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last, so that no file of the current folder hides an installed module
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InputError(_broken(reference, kind, module_name, error)) from error
        raise InputError(
            f"{kind} {reference!r}: there is no module {error.name!r}. Install it, or start from the folder that holds it; "
            f"the current folder is {here}."
        ).telling(f"{kind} {reference!r}: there is no module {error.name!r}.") from error
    except SketchfedError:  # says itself what is wrong, and what to do about it
        raise
    except (Exception, SystemExit) as error:
        raise InputError(_broken(reference, kind, module_name, error)) from error
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        raise InputError(
            f"{kind} {reference!r}: module {module_name!r} has no {attribute!r}. Check the name after the colon."
        ) from None


def resolve_function(reference: str, kind: str) -> Callable[..., Any]:
    """The function that `package.module:function` names."""
    found = resolve(reference, kind)
    _check_callable(found, f"{kind} {reference!r}", kind)
    return found  # type: ignore[no-any-return]


def check_options(
    function: Callable[..., object], options: dict[str, Any], *, owner: str, besides: tuple[str, ...] = ()
) -> None:
    """Refuse options that `function` does not take, or that it needs and lacks.

    `owner` names it in errors, such as "data set 'mnist'"; parameters in `besides` are not options.
    """
    try:
        parameters = [p for name, p in signature(function).parameters.items() if name not in besides]
    except ValueError:  # some functions written in C do not tell
        return
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for option in options:
            if option not in known:
                raise InputError(f"{owner} has no option {option!r}; it has {', '.join(known) or 'none'}.")
    for p in parameters:
        if p.default is p.empty and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in options:
            raise InputError(f"{owner} needs the option {p.name!r}. Give it a value.")


@lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points that packages on `path`, which is `sys.path`, announce for a group. Packages are read once."""
    try:
        return tuple(entry_points(group=group))
    except Exception as error:  # one package with damaged metadata is enough
        log.warning(
            "entry points of %s cannot be read: %s: %s. Only built-in parts are found.", group, type(error).__name__, error
        )
        return ()


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unnamed package"


def _check_callable(found: Any, who: str, kind: str) -> None:
    if not callable(found):
        raise InputError(
            f"{who} is a {type(found).__name__}, which cannot be called. Name a function that returns {_article(kind)}."
        )


def check_class(found: Any, who: str, bases: tuple[type, ...]) -> None:
    """Refuse what is no finished subclass of one of the bases, and say what it lacks."""
    homes = " or ".join(f"{base.__module__}.{base.__qualname__}" for base in bases)
    if not isinstance(found, type):
        raise InputError(f"{who} is a {type(found).__name__}, not a class. Name a subclass of {homes}.")
    if not issubclass(found, bases):
        raise InputError(f"{who} is not a subclass of {homes}. Derive {found.__qualname__} from it.")
    lacking = [name for name in _class_variables(found) if not hasattr(found, name)]
    if isabstract(found):
        lacking += sorted(getattr(found, "__abstractmethods__", ()))
    if lacking:
        raise InputError(
            f"{who} is not finished: {found.__qualname__} lacks {', '.join(lacking)}. See {homes} for what they say."
        )
    if is_dataclass(found):
        known = {each.name for each in fields(found)}
        hints = vars(found).get("__annotations__", {})
        if lost := [name for name, hint in hints.items() if name not in known and not _is_class_variable(hint)]:
            raise InputError(
                f"{who} has {', '.join(lost)}, but {found.__qualname__} is not declared as a dataclass, so they cannot be set. "
                "Write @dataclass(frozen=True, kw_only=True) above it."
            )


def _class_variables(part: type) -> list[str]:
    """What a class and its bases declare as `ClassVar`."""
    declared = [item for kind in reversed(part.__mro__) for item in vars(kind).get("__annotations__", {}).items()]
    return [name for name, hint in declared if _is_class_variable(hint)]


def _is_class_variable(hint: object) -> bool:
    return hint is ClassVar or get_origin(hint) is ClassVar or (isinstance(hint, str) and "ClassVar" in hint)


def _article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _broken(reference: str, kind: str, module: str, error: BaseException) -> str:
    return f"{kind} {reference!r}: importing {module!r} failed with {type(error).__name__}: {error}. Mend that module."
