"""What travels beside parameters under noise and in secure sums: the scale of weights, and what is refused."""

from collections.abc import Sequence
from dataclasses import replace

from sketchfed.algorithms import Algorithm
from sketchfed.errors import InputError
from sketchfed.protection.settings import PrivacySettings, SecureSettings


def scaled(
    algorithm: Algorithm, privacy: PrivacySettings | None, secure: SecureSettings | None, sizes: Sequence[int]
) -> Algorithm:
    """The algorithm with the scale of weights that suits its protection. Raise `InputError` for what is not sound.

    Where contributions are clipped, a weight of 1 stands for half of the clip norm. Clipping scales a change and its weight
    down together, so it lowers a client's weight and does not distort its change.
    """
    segments = algorithm.segments
    if segments is None:
        return algorithm
    if privacy is not None:
        _check(algorithm, privacy)
    clip = privacy.clip if privacy is not None else None if secure is None else secure.needed_clip()
    if not segments.weight:
        return replace(algorithm, _segments=replace(segments, clip=clip))
    scale = 1.0 if clip is None else clip / 2
    most = algorithm.most_examples or max(sizes)
    least = scale * min(min(sizes), most) / most / 2
    return replace(algorithm, _segments=replace(segments, clip=clip, scale=scale, least=least, unchecked=clip is not None))


def _check(algorithm: Algorithm, privacy: PrivacySettings) -> None:
    segments = algorithm.segments
    if segments is None:
        return
    if algorithm.correction:
        raise InputError(
            f"{algorithm.correction} does not go with [privacy]: what corrects clients' steps adds up over all rounds, and so "
            "would the noise in it. Remove it, or use training.proximal (FedProx), which adds up nothing."
        )
    if segments.buffers:
        raise InputError(
            "model.buffers = 'average' does not go with [privacy]: with noise, a running variance can become negative. Use "
            "model.buffers = 'local', or nn.GroupNorm."
        )
    if segments.weight and privacy.unit == "example":
        raise InputError(
            "algorithm.weighting = 'examples' does not go with privacy.unit = 'example', where a client's number of examples "
            "is not to be told. Use weighting = 'equal'."
        )
