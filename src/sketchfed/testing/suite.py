"""What all conformance suites have in common: parts to run over, and checks that say what they demand."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import pytest

Check = TypeVar("Check", bound=Callable[..., None])


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

    def cases(self) -> dict[str, Any]:
        """The parts by the names of their tests."""
        parts: Mapping[str, Any] | Iterable[Any] = getattr(self, self.attribute)
        if isinstance(parts, Mapping):
            return dict(parts)
        named: dict[str, Any] = {}
        for part in parts:
            name = str(getattr(part, "name", None) or getattr(getattr(part, "func", part), "__name__", part))
            named[name if name not in named else f"{name} {len(named) + 1}"] = part
        return named

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Gives every check its parts."""
        if self.argument not in metafunc.fixturenames:
            return
        applies = getattr(metafunc.function, "applies", lambda suite, part: True)
        chosen = {name: part for name, part in self.cases().items() if applies(self, part)}
        metafunc.parametrize(self.argument, list(chosen.values()), ids=list(chosen))


def demands(suite: type[Suite]) -> dict[str, str]:
    """What a suite demands: by the name of each check, the first paragraph of its docstring."""
    return {name: " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split()) for name, check in _checks(suite)}


def _checks(suite: type[Suite]) -> Iterator[tuple[str, object]]:
    names = dict.fromkeys(name for kind in _in_order(suite) for name in vars(kind) if name.startswith("test_"))
    yield from ((name, getattr(suite, name)) for name in names)


def _in_order(suite: type[Suite]) -> Iterator[type]:
    """The classes of a suite in the order in which it lists them, and itself last."""
    for base in suite.__bases__:
        yield from _in_order(base)
    yield suite
