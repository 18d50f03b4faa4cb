"""Combine rules: how the vectors of a round become one, also if some of them were sent to do harm."""

from sketchfed.combining.base import CombineRule, check_share
from sketchfed.combining.centered_clipping import CenteredClipping
from sketchfed.combining.geometric_median import GeometricMedian
from sketchfed.combining.krum import Krum
from sketchfed.combining.mean import Mean
from sketchfed.combining.median import Median
from sketchfed.combining.trimmed_mean import TrimmedMean
from sketchfed.parts import Registry

__all__ = [
    "COMBINE_RULES",
    "CenteredClipping",
    "CombineRule",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "TrimmedMean",
    "check_share",
]

_OURS: tuple[type[CombineRule], ...] = (Mean, TrimmedMean, Median, GeometricMedian, Krum, CenteredClipping)
COMBINE_RULES: Registry[type[CombineRule]] = Registry(
    "combine rule", {rule.name: rule for rule in _OURS}, group="sketchfed.combine_rules", base=CombineRule
)
