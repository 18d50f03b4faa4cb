"""What all conformance suites have in common: parts to run over, and checks that say what they demand."""

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar, TypeVar

import pytest
import torch

from sketchfed.errors import InputError
from sketchfed.testing.devices import pretended

Check = TypeVar("Check", bound=Callable[..., None])

with suppress(InputError):
    pretended()  # before the first backward pass: torch then starts its threads, for the devices that it knows by then


def other_device() -> torch.device:
    """A device that pretends to be another one than the CPU. The check is skipped where torch cannot pretend."""
    try:
        device = pretended()
        torch.ones(1, device=device, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call]
    except InputError as error:
        pytest.skip(str(error))
    except RuntimeError as error:
        pytest.skip(f"no device can be pretended, because backward passes ran before sketchfed.testing was imported: {error}")
    return device


def only(applies: Callable[[Any, Any], bool]) -> Callable[[Check], Check]:
    """Runs a check for the parts for which `applies(suite, part)` holds."""

    def marked(check: Check) -> Check:
        check.applies = applies  # type: ignore[attr-defined]
        return check

    return marked


class Suite:
    """Checks that run once for each part of a kind.

    A subclass with a name that begins with `Test` is collected by pytest. Its parts are a list, or a mapping whose keys
    become the names of the tests.
    """

    argument: ClassVar[str]
    """The argument of the checks that is a part."""
    attribute: ClassVar[str]
    """The attribute that holds the parts."""
    kind: ClassVar[type]
    """The base class of the parts."""
    example: ClassVar[str]
    """What the attribute could hold."""

    def __init_subclass__(cls) -> None:
        """Leave out checks that apply to none of the parts, so that pytest does not show them as skipped."""
        super().__init_subclass__()
        if not hasattr(cls, "attribute") or not hasattr(cls, cls.attribute):
            return
        suite = cls()
        try:
            parts = list(suite.cases().values())
        except InputError:
            return  # pytest shows it when it collects the checks
        for name, check in _checks(cls):
            applies = any(_applies(check)(suite, part) for part in parts)
            setattr(cls, name, check if applies else None)

    def cases(self) -> dict[str, Any]:
        """The parts by the names of their tests. Raises `InputError` if there are none, or if one is something else."""
        parts = self._named()
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            if (what := self.refused(part)) is not None:
                raise InputError(f"{type(self).__name__}.{self.attribute} holds {what}. {self._remedy}")
        if isinstance(parts, Mapping):
            return dict(parts)
        named: dict[str, Any] = {}
        for part in parts:
            name = str(getattr(part, "name", None) or getattr(getattr(part, "func", part), "__name__", part))
            named[name if name not in named else f"{name} {len(named) + 1}"] = part
        return named

    def refused(self, part: object) -> str | None:
        """What a part is, and what it should be, if it is not a part of this kind."""
        name = self.kind.__name__
        if isinstance(part, self.kind):
            return None
        if isinstance(part, type) and issubclass(part, self.kind):
            return f"the class {part.__name__}, but the checks need instances, because options belong to them"
        return f"{part!r}, which is not an instance of {name}, so the checks cannot run"

    @property
    def _remedy(self) -> str:
        return f"Write, for example, {self.attribute} = {self.example}."

    def _named(self) -> Mapping[str, Any] | Collection[Any]:
        """What the attribute holds: some things."""
        owner, parts = type(self).__name__, getattr(self, self.attribute, None)
        if parts is None:
            others = [
                repr(name) for name in vars(type(self)) if not name.startswith(("_", "test_")) and not hasattr(Suite, name)
            ]
            instead = f"but it has {', '.join(others)}" if others else "so no check would run"
            raise InputError(f"{owner} has no attribute '{self.attribute}', which names its parts, {instead}. {self._remedy}")
        if not isinstance(parts, Collection) or isinstance(parts, str | bytes | type):
            kind = f"{self.kind.__name__} parts"
            raise InputError(f"{owner}.{self.attribute} must be a list or a mapping of {kind}, got {parts!r}. {self._remedy}")
        if not parts:
            raise InputError(f"{owner}.{self.attribute} is empty, so no check would run. {self._remedy}")
        return parts

    def _cases_to_collect(self) -> dict[str, Any]:
        """The parts. If they are not usable, pytest shows one sentence and no traceback."""
        try:
            return self.cases()
        except InputError as error:
            raise pytest.Collector.CollectError(str(error)) from None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Gives every check its parts."""
        if self.argument not in metafunc.fixturenames:
            return
        applies = _applies(metafunc.function)
        chosen = {name: part for name, part in self._cases_to_collect().items() if applies(self, part)}
        metafunc.parametrize(self.argument, list(chosen.values()), ids=list(chosen))


def demands(suite: type[Suite]) -> dict[str, str]:
    """What a suite demands: by the name of each check, the first paragraph of its docstring."""
    return {name: " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split()) for name, check in _checks(suite)}


def _applies(check: Callable[..., None]) -> Callable[[Any, Any], bool]:
    return getattr(check, "applies", lambda suite, part: True)


def _checks(suite: type[Suite]) -> Iterator[tuple[str, Callable[..., None]]]:
    """The checks of a suite by name, also those that a class in between has left out."""
    for name in dict.fromkeys(name for kind in _in_order(suite) for name in vars(kind) if name.startswith("test_")):
        yield name, next(found for kind in suite.__mro__ if (found := vars(kind).get(name)) is not None)


def _in_order(suite: type[Suite]) -> Iterator[type]:
    """The classes of a suite in the order in which it lists them, and itself last."""
    for base in suite.__bases__:
        yield from _in_order(base)
    yield suite
