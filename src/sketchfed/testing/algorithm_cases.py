"""The tiny federations that algorithms are tried in, and the protections that they are tried under."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from torch import nn

from sketchfed.algorithms import Algorithm, RoundContext
from sketchfed.codecs.linear import LinearCode
from sketchfed.errors import NotLinearError
from sketchfed.protection import PrivacySettings, SecureSettings
from sketchfed.rounds.server import Server
from sketchfed.testing.federation import federation
from sketchfed.testing.problems import SEED, data_of, dense_model
from sketchfed.testing.suite import Suite
from sketchfed.training import Examples
from sketchfed.vectors import flatten

CLIENTS = 4
NOISE: Mapping[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "insecure_noise_seed": 5, "accountant": "rdp"}
STEPS: Mapping[str, Any] = {"local_steps": 2, "batch": 4}
ONE_STEP: Mapping[str, Any] = {"local_steps": 1, "batch": 4}


@dataclass(frozen=True, kw_only=True)
class Protected:
    """Settings of [privacy] and [secure], and what [algorithm] needs for them."""

    privacy: PrivacySettings | None = None
    secure: SecureSettings | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def _noise(**settings: Any) -> PrivacySettings:
    return PrivacySettings(**NOISE, **settings)


PROTECTIONS = {
    "nothing": Protected(changes={"participation": 0.75}),
    "noise in local steps": Protected(privacy=_noise(unit="example", placement="steps"), changes=STEPS),
    "noise on what clients send": Protected(privacy=_noise()),
    "noise on what examples send": Protected(privacy=_noise(unit="example"), changes=ONE_STEP),
    "noise on batches from passes": Protected(
        privacy=_noise(unit="example", batches="passes"), changes={"local_steps": None, "batch": 4}
    ),
    "central noise": Protected(privacy=_noise(observer="public")),
    "central noise for examples": Protected(privacy=_noise(observer="public", unit="example"), changes=ONE_STEP),
    "hidden cohorts": Protected(privacy=_noise(observer="public", hidden_cohorts=True), changes={"participation": 0.75}),
    "secure sums": Protected(secure=SecureSettings(clip=10.0)),
    "secure sums and noise for clients": Protected(privacy=_noise(name="discrete_gaussian"), secure=SecureSettings()),
    "secure sums and noise for examples": Protected(
        privacy=_noise(name="discrete_gaussian", unit="example"), secure=SecureSettings(), changes=ONE_STEP
    ),
    "secure sums and noise in local steps": Protected(
        privacy=_noise(unit="example", placement="steps"), secure=SecureSettings(clip=10.0), changes=STEPS
    ),
}
"""Nothing, every kind of noise, and secure sums with and without it."""


class AlgorithmSuite(Suite):
    """Checks over `algorithms`."""

    argument, attribute, kind, example = "algorithm", "algorithms", Algorithm, "[Mine()]"

    def looked_through(self, algorithm: Algorithm) -> bool:
        """Whether an audit sees a client's whole change through a linear map. Override it for an algorithm that adds to it."""
        return algorithm.noise_defaults is None and code_of(algorithm) is not None


@cache
def module() -> nn.Module:
    """A perceptron of 6 inputs, 5 units and 4 outputs."""
    return dense_model("mlp", hidden=[5])


def clients_data() -> list[Examples]:
    """Examples of four clients, from 5 to 8 each."""
    return data_of(CLIENTS, loss="cross_entropy")


def dim() -> int:
    """The parameters of the module."""
    return len(flatten(module()))


def working(algorithm: Algorithm, **changes: Any) -> Algorithm:
    """The algorithm with a few rounds of two local steps."""
    work = {"rounds": 6, "local_steps": 2, "local_epochs": None, "batch": 4, "local_rate": 0.1}
    return replace(algorithm, **{**work, **changes})


def own_noise(algorithm: Algorithm) -> PrivacySettings | None:
    """The noise without which an algorithm does not run; None for most."""
    return None if algorithm.noise_defaults is None else _noise(**algorithm.noise_defaults["gaussian"])


def started(algorithm: Algorithm, protected: Protected | None = None, **settings: Any) -> Server:
    """A tiny federation before its first round."""
    protected = protected or Protected(privacy=own_noise(algorithm))
    return federation(
        working(algorithm, **protected.changes),
        clients_data(),
        module=module(),
        loss="cross_entropy",
        privacy=protected.privacy,
        secure=protected.secure,
        **settings,
    )


def code_of(algorithm: Algorithm) -> LinearCode | None:
    """The linear code that an algorithm declares for the tiny problem, if any."""
    resolved = working(algorithm).resolved(dim(), CLIENTS, module())
    try:
        return resolved.code(dim(), RoundContext(round=0, seed=SEED, client=0))
    except NotLinearError:
        return None


def refusal(algorithm: Algorithm, protected: Protected) -> str | None:
    """Why an algorithm is refused with a protection before the first round. None if it runs."""
    resolved, privacy = working(algorithm, **protected.changes).resolved(dim(), CLIENTS, module()), protected.privacy
    if privacy is None and resolved.noise_defaults is not None:
        return "runs only with noise"
    if privacy is not None and privacy.placement in resolved.refused_placements:
        return resolved.refused_placements[privacy.placement]
    if protected.secure is None and (privacy is None or privacy.placement == "steps"):
        return None
    try:
        resolved.code(dim(), RoundContext(round=0, seed=SEED, client=0))
    except NotLinearError as error:
        return error.reason
    return None
