"""Data and a model of one's own, for own-model.toml."""

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn

from sketchfed.data import DataSet


def tumours(*, test_every: int = 5) -> DataSet:
    """569 tumours by 30 measurements, benign or not, from scikit-learn; each fifth is for testing."""
    measurements, benign = load_breast_cancer(return_X_y=True)
    x, y = torch.tensor(measurements, dtype=torch.float32), torch.tensor(benign, dtype=torch.int64)
    test = torch.arange(len(x)) % test_every == 0
    mean, deviation = x[~test].mean(0), x[~test].std(0)

    def standardised(rows: Tensor) -> Tensor:
        return (rows - mean) / deviation

    return DataSet(
        name="tumours",
        x_train=x[~test],
        y_train=y[~test],
        x_test=x[test],
        y_test=y[test],
        outputs=2,
        shape=(30,),
        prepare=standardised,
    )


def network(*, shape: tuple[int, ...], outputs: int, width: int = 32, dropout: float = 0.0) -> nn.Module:
    """Any torch module does; batch normalisation does not, since no update carries its running statistics."""
    return nn.Sequential(
        nn.Linear(shape[0], width),
        nn.LayerNorm(width),
        nn.GELU(),
        nn.Dropout(dropout),
        nn.Linear(width, outputs),
    )
