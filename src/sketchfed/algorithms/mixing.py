"""What the algorithms have in common whose nodes mix with their neighbours: a step towards them, and no server."""

from collections.abc import Mapping

from sketchfed.algorithms.round_settings import RoundSettings
from sketchfed.errors import InputError

Refused = Mapping[str, tuple[bool, str]]
"""Settings as a user writes them, each with whether it is given, and with why it does not work."""


def check_mixing(algorithm: RoundSettings, mixing: float | None, others: Refused) -> None:
    """Refuse settings that need a server, `others` that the algorithm cannot use, and steps that are no shares."""
    if mixing is not None and not 0 < mixing <= 1:
        raise InputError(f"algorithm.mixing must be above 0 and at most 1, got {mixing}.")
    refused: Refused = {
        f"algorithm.participation = {algorithm.participation:g}": (
            algorithm.participation != 1,
            "all nodes of a graph take part in every round. Remove participation, and see graph.node_failures for nodes that "
            "are away.",
        ),
        **others,
        f"algorithm.global_momentum = {algorithm.global_momentum:g}": (
            bool(algorithm.global_momentum),
            "nobody takes a global step. Use local_momentum, or an optimiser in [training].",
        ),
        f"algorithm.combine = '{algorithm.combine.name}'": (
            not algorithm.combine.averages,
            "a node mixes by the weights of its links. Remove it.",
        ),
    }
    for given, (is_given, why) in refused.items():
        if is_given:
            raise InputError(f"{given} does not go with algorithm '{algorithm.name}': {why}")


def check_global_rate(algorithm: RoundSettings) -> None:
    """Refuse the step of a server."""
    if algorithm.global_rate not in (None, 1.0):
        raise InputError(
            f"algorithm.global_rate = {algorithm.global_rate:g} is a server's step, and nobody takes one in algorithm "
            f"'{algorithm.name}'. Set algorithm.mixing, the step towards the neighbours."
        )


def known(mixing: float | None) -> float:
    """`mixing` of completed settings."""
    if mixing is None:
        raise InputError("algorithm.mixing has no value yet. Set it, or call resolved(dim) first.")
    return mixing
