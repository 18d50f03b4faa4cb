"""Parts that [algorithm] names by a key, with their options in a table of that key: [combine] and [server]."""

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, get_type_hints

from sketchfed.combining import COMBINE_RULES, CombineRule, Mean
from sketchfed.errors import InputError
from sketchfed.parts import Registry
from sketchfed.server_optimisers import SERVER_OPTIMISERS, ServerOptimiser, Sgd
from sketchfed.tables import check_keys, check_type


@dataclass(frozen=True, kw_only=True)
class ChosenPart:
    """A part by its name, and its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    key: ClassVar[str]
    """The key in [algorithm], and the name of the table of options."""
    registry: ClassVar[Registry[Any]]
    default: ClassVar[str]
    """The part that is used unless another one is named. It leaves no trace in files."""

    def __post_init__(self) -> None:
        kind = self.registry[self.name]  # raises an error if the name is unknown
        known = [option.name for option in fields(kind)]
        if self.options and not known:
            raise InputError(
                f"[{self.key}] has {', '.join(self.options)}, but algorithm.{self.key} = '{self.name}' has no options. Remove "
                f"that table, or name another {self.registry.kind}."
            )
        check_keys(self.key, self.options, known)
        for option, value in self.options.items():
            check_type(value, get_type_hints(kind)[option], f"{self.key}.{option}")
        self._made()

    @property
    def usual(self) -> bool:
        """Whether this is the default part."""
        return self.registry[self.name] is self.registry[self.default]

    def completed(self) -> Self:
        """Return a copy with the default of every option filled in."""
        part = self._made()
        return replace(self, options={option.name: getattr(part, option.name) for option in fields(part)})

    def _made(self) -> Any:
        return self.registry[self.name](**self.options)


@dataclass(frozen=True, kw_only=True)
class CombineSettings(ChosenPart):
    """Selects the rule that makes one vector of a round's packets, and its options."""

    name: str = Mean.name

    key = "combine"
    registry = COMBINE_RULES
    default = Mean.name

    @property
    def averages(self) -> bool:
        """Whether the algorithm decodes all packets together, as their mean."""
        return self.usual

    def rule(self) -> CombineRule:
        """Make the rule."""
        return self._made()  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class ServerSettings(ChosenPart):
    """Selects the optimiser that makes the global step of a round's mean change, and its options."""

    name: str = Sgd.name

    key = "server"
    registry = SERVER_OPTIMISERS
    default = Sgd.name

    def optimiser(self) -> ServerOptimiser:
        """Make the optimiser."""
        return self._made()  # type: ignore[no-any-return]
