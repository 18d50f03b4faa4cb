"""The table [training] of a configuration."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sketchfed.errors import InputError
from sketchfed.parts import short
from sketchfed.tables import keys_of
from sketchfed.training.recipe import OPTIMISERS, SCHEDULES, STEPPING, Recipe


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The table [training]: functions of your own that train and evaluate, and how the built-in loop takes its steps."""

    train: str | None = None
    """A function `train(model, data, context)`, as "package.module:function". It trains the model in place on a client's data.
    If absent, the built-in loop trains as [algorithm] and this table say."""
    evaluate: str | None = None
    """A function `evaluate(model, data, context)` that returns metrics by name. The server calls it on the test data, and
    clients call it on their own with `evaluate_clients`. If absent, a run with a loop of your own reports no metrics."""
    evaluate_clients: bool = False
    """Whether the model is also evaluated on [each client's own data](training.md#metrics-on-clients) whenever it is scored."""
    batch_loss: str | None = None
    """A function `batch_loss(model, batch)` that returns the mean loss of a batch. The built-in loop minimises it instead of
    `model.loss`."""
    collate: str | None = None
    """A function that makes a batch of a list of examples, for data given as objects. If absent, that of torch's DataLoader."""
    optimiser: str = "sgd"
    """The optimiser of local steps: `sgd`, `adam`, `adamw`, or another one such as "torch.optim:RMSprop". Its options, such as
    `betas`, are further keys of this table. Its rate is `algorithm.local_rate`."""
    optimiser_state: Literal["reset", "kept"] = "reset"
    """Whether the optimiser begins anew each round, or each client keeps its state between rounds."""
    round_schedule: str = "constant"
    """How the rate changes over the rounds: `constant`, `linear` or `cosine` down to zero, or a function of your own from the
    progress, 0 to 1, to a factor."""
    step_schedule: str = "constant"
    """The same over the steps of a round."""
    warmup_rounds: int = 0
    """The number of first rounds in which the rate grows in equal steps to its full value."""
    clip_norm: float | None = None
    """The largest norm of the gradient of a local step. Longer ones are scaled down to it. This is no privacy."""
    proximal: float = 0.0
    """FedProx's μ: local steps also minimise (proximal/2)·‖w − w₀‖², which keeps a client near the round's weights w₀. Its
    gradient is added after `clip_norm`."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """`bfloat16` and `float16` compute outputs and losses with torch's automatic mixed precision. Weights stay float32. With
    `float16`, losses are scaled so that small gradients do not vanish."""
    accumulate: int = 1
    """In how many parts the gradient of a batch is computed, one after the other, which takes less memory."""
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.warmup_rounds < 0 or self.accumulate < 1:
            raise InputError(
                f"training.warmup_rounds must not be negative, and training.accumulate must be at least 1, got "
                f"{self.warmup_rounds} and {self.accumulate}."
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise InputError(f"training.clip_norm must be above 0 and finite, got {self.clip_norm}.")
        if not 0 <= self.proximal < float("inf"):
            raise InputError(
                f"training.proximal is FedProx's μ. It must not be negative, and it must be finite, got {self.proximal}."
            )
        if self.train is None:
            OPTIMISERS[self.optimiser]  # raises an error if the name is unknown
            SCHEDULES[self.round_schedule]
            SCHEDULES[self.step_schedule]
            return
        if self.proximal:
            raise InputError(
                f"training.proximal = {self.proximal:g} is for the built-in loop, and training.train names a loop of your own, "
                "whose steps nobody else sees. Remove it, copy the parameters where your loop begins (start = "
                "[p.detach().clone() for p in model.parameters()]), and add proximal / 2 * sum((p - s).square().sum() for p, s "
                "in zip(model.parameters(), start)) to its loss."
            )
        for name in ("batch_loss", *STEPPING):
            if getattr(self, name) != getattr(type(self), name):
                raise InputError(
                    f"training.{name} is for the built-in loop, and training.train names a loop of your own. Remove one of "
                    "them."
                )

    @property
    def usual(self) -> bool:
        """Whether nothing differs from the default. The table then leaves no trace in files."""
        return self == TrainingSettings()

    @property
    def words(self) -> list[str]:
        """What the label of a run says of these settings."""
        if self.optimiser == "sgd":
            return []
        return [short(self.optimiser) + (" kept" if self.optimiser_state == "kept" else "")]

    def table(self) -> dict[str, Any]:
        """The settings that have an effect, as a table of a configuration."""
        names = ("train", "evaluate", "evaluate_clients") if self.train is not None else keys_of(TrainingSettings)
        return {name: value for name in names if (value := getattr(self, name)) is not None} | self.options

    def recipe(self, rounds: int) -> Recipe:
        """How the built-in loop takes its steps, in a run of this many rounds."""
        if self.train is not None:
            return Recipe(rounds=rounds)
        own = {name: getattr(self, name) for name in STEPPING if name != "optimiser_state"}
        return Recipe(**own, state=self.optimiser_state, options=self.options, rounds=rounds)
