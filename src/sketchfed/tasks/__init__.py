"""Computations whose server needs nothing of its clients but means: the three tasks of Jiang et al. 2023, Sec. 5."""

from sketchfed.tasks.clustering import k_means
from sketchfed.tasks.eigenvector import power_iteration
from sketchfed.tasks.history import History, MeanEstimator
from sketchfed.tasks.regression import linear_regression

__all__ = ["History", "MeanEstimator", "k_means", "linear_regression", "power_iteration"]
