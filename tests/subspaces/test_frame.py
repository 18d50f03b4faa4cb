"""The part of a model that smooth images move."""

from hashlib import sha256

import numpy as np
import pytest
import scipy.fft
import torch
from torch import nn

from sketchfed.errors import InputError
from sketchfed.subspaces import Frame
from sketchfed.subspaces.cosines import cosines, smooth_images
from sketchfed.vectors import Layout


def frame_of(*layers: nn.Module, image=(6, 8), frequencies=9) -> Frame:
    return Frame.smooth(Layout.of(nn.Sequential(*layers)), image=image, frequencies=frequencies)


@pytest.mark.parametrize("length", [1, 2, 3, 7, 28, 64])
def test_cosines_are_the_orthonormal_transform(length):
    table = cosines(length)
    np.testing.assert_allclose(table @ table.T, np.eye(length), atol=1e-14)
    np.testing.assert_allclose(table.T, scipy.fft.dct(np.eye(length), norm="ortho"), atol=1e-14)


def test_cosines_are_the_same_on_every_machine():
    assert sha256(cosines(28).tobytes()).hexdigest()[:16] == "cae1902c0923a0c9"
    assert cosines(2)[1].tolist() == [0.5**0.5, -(0.5**0.5)]


@pytest.mark.parametrize("channels", [1, 3])
def test_rows_are_the_slowest_cosines_of_each_channel(channels):
    rows = smooth_images(6, 8, channels=channels, frequencies=9)
    assert rows.shape == (9 * channels, channels * 48)
    spectrum = scipy.fft.dctn(rows.reshape(9 * channels, channels, 6, 8), axes=(2, 3), norm="ortho")
    found = [tuple(place) for image in spectrum for place in np.argwhere(np.abs(image) > 1e-6)]
    assert len(found) == len(set(found)) == 9 * channels
    slowest = sorted(i * i + j * j for i in range(6) for j in range(8))[:9]
    assert sorted(i * i + j * j for channel, i, j in found if channel == 0) == slowest


@pytest.mark.parametrize("layers", [(nn.Linear(48, 5), nn.Linear(5, 3)), (nn.LayerNorm(4), nn.Linear(96, 5))])
def test_a_frame_is_orthonormal_and_leaves_the_rest_of_a_model_as_it_is(layers):
    frame = frame_of(*layers)
    every = frame.adjoint(torch.eye(frame.inner))
    assert every.shape == (frame.inner, frame.dim)
    assert torch.allclose(every @ every.T, torch.eye(frame.inner), atol=1e-5)
    x = torch.randn(3, 2, frame.dim, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(frame.apply(x), x @ every.T, atol=1e-5)
    y = torch.randn(frame.inner, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(frame.adjoint(y), y @ every, atol=1e-5)
    outside = torch.ones(frame.dim, dtype=torch.bool)
    outside[frame.start : frame.start + frame.outputs * frame.rows.shape[1]] = False
    assert torch.equal(frame.adjoint(frame.apply(x[0, 0]))[outside], x[0, 0][outside])


def test_gradients_of_smooth_images_pass_and_those_of_noise_do_not():
    layer = nn.Linear(28 * 28, 8)
    frame = frame_of(layer, image=(28, 28), frequencies=60)
    generator = torch.Generator().manual_seed(3)
    smooth = torch.tensor(smooth_images(28, 28, channels=1, frequencies=60)).T @ torch.randn(60, generator=generator)
    for image, share in ((smooth, 1.0), (torch.randn(28 * 28, generator=generator), 60 / 784)):
        gradient = torch.cat([torch.outer(torch.randn(8, generator=generator), image).reshape(-1), torch.zeros(8)])
        passed = frame.apply(gradient).square().sum() / gradient.square().sum()
        assert passed == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize(
    ("layers", "image", "frequencies", "said"),
    [
        ((nn.Linear(50, 5),), (6, 8), 9, "50 inputs"),
        ((nn.Conv2d(1, 4, 5), nn.Linear(48, 5)), (6, 8), 9, "convolution"),
        ((nn.LayerNorm(4),), (6, 8), 9, "has none"),
        ((nn.Linear(48, 5),), (6, 8), 49, "48 frequencies"),
    ],
)
def test_models_and_images_that_do_not_fit_are_refused(layers, image, frequencies, said):
    with pytest.raises(InputError, match=said):
        frame_of(*layers, image=image, frequencies=frequencies)
