"""Conformance suites for your own sketches, codecs, combine rules, server optimisers and algorithms, and tiny federations.

Derive a test class from a suite and name your parts; pytest then runs every check for each of them:

    from sketchfed.testing import CodecConformance

    class TestMine(CodecConformance):
        codecs = [Mine(dim=256, size=32)]

`demands` lists what a suite checks, and `outcome` tries whether parts of a run work together. The suites need pytest (`pip
install 'sketchfed[testing]'`).
"""

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("sketchfed.testing needs pytest, which is not installed: pip install pytest.") from error

_CHECKS = (
    "algorithm_options",
    "algorithm_rounds",
    "algorithm_views",
    "algorithms",
    "codec_packets",
    "codec_vectors",
    "codecs",
    "combine_rules",
    "server_optimisers",
    "sketches",
)
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _CHECKS))  # before any of them is imported

from sketchfed.testing.algorithms import AlgorithmConformance  # noqa: E402
from sketchfed.testing.codecs import CodecConformance  # noqa: E402
from sketchfed.testing.combinations import FEATURES, Part, algorithm_parts, outcome  # noqa: E402
from sketchfed.testing.combine_rules import CombineRuleConformance  # noqa: E402
from sketchfed.testing.devices import DeviceMixError, pretended  # noqa: E402
from sketchfed.testing.federation import Apart, Tap, advanced, federation, weights_of  # noqa: E402
from sketchfed.testing.odds import mean_interval  # noqa: E402
from sketchfed.testing.problems import data_of, dense_model, examples  # noqa: E402
from sketchfed.testing.server_optimisers import ServerOptimiserConformance  # noqa: E402
from sketchfed.testing.sketches import SketchConformance  # noqa: E402
from sketchfed.testing.suite import demands  # noqa: E402

__all__ = [
    "FEATURES",
    "AlgorithmConformance",
    "Apart",
    "CodecConformance",
    "CombineRuleConformance",
    "DeviceMixError",
    "Part",
    "ServerOptimiserConformance",
    "SketchConformance",
    "Tap",
    "advanced",
    "algorithm_parts",
    "data_of",
    "demands",
    "dense_model",
    "examples",
    "federation",
    "mean_interval",
    "outcome",
    "pretended",
    "weights_of",
]
