"""Subspaces that follow the gradients: every party rebuilds them from the shared seed and what was broadcast."""

from sketchfed.subspaces.basis import Basis, Extension
from sketchfed.subspaces.centre import MeanImage, damped
from sketchfed.subspaces.frame import Frame
from sketchfed.subspaces.fresh import Fresh
from sketchfed.subspaces.frozen import Frozen
from sketchfed.subspaces.history_pca import HistoryPca
from sketchfed.subspaces.incremental_svd import IncrementalSvd
from sketchfed.subspaces.probes import Probes
from sketchfed.subspaces.rule import UpdateRule
from sketchfed.subspaces.subspace import Subspace

__all__ = [
    "UPDATES",
    "Basis",
    "Extension",
    "Frame",
    "Fresh",
    "Frozen",
    "HistoryPca",
    "IncrementalSvd",
    "MeanImage",
    "Probes",
    "Subspace",
    "UpdateRule",
    "damped",
]

UPDATES: dict[str, type[UpdateRule]] = {rule.name: rule for rule in (HistoryPca, IncrementalSvd, Frozen, Fresh)}
