"""The orthonormal cosine transform (DCT-II) of any length: scipy on the CPU, torch's FFT elsewhere."""

import math

import scipy.fft
import torch
from torch import Tensor

from sketchfed.kernels.jit import on_cpu


def cosine(x: Tensor) -> Tensor:
    """Over the last dimension; its inverse is its transpose."""
    if on_cpu(x):
        return torch.from_numpy(scipy.fft.dct(x.numpy(), norm="ortho"))
    length = x.shape[-1]
    reordered = torch.cat([x[..., ::2], x[..., 1::2].flip(-1)], dim=-1)
    spectrum = torch.fft.fft(reordered) * _twist(length, x)
    return spectrum.real * _weights(length, x)


def cosine_transposed(y: Tensor) -> Tensor:
    """Over the last dimension: undoes `cosine`."""
    if on_cpu(y):
        return torch.from_numpy(scipy.fft.idct(y.numpy(), norm="ortho"))
    length = y.shape[-1]
    unscaled = y / _weights(length, y)
    mirrored = torch.cat([torch.zeros_like(unscaled[..., :1]), unscaled[..., 1:].flip(-1)], dim=-1)
    reordered = torch.fft.ifft(torch.complex(unscaled, -mirrored) * _twist(length, y).conj()).real
    out = torch.empty_like(y)
    out[..., ::2] = reordered[..., : (length + 1) // 2]
    out[..., 1::2] = reordered[..., (length + 1) // 2 :].flip(-1)
    return out


def _twist(length: int, like: Tensor) -> Tensor:
    angle = torch.arange(length, dtype=like.dtype, device=like.device) * (-math.pi / (2 * length))
    return torch.complex(angle.cos(), angle.sin())


def _weights(length: int, like: Tensor) -> Tensor:
    weights = torch.full((length,), math.sqrt(2 / length), dtype=like.dtype, device=like.device)
    weights[0] = math.sqrt(1 / length)
    return weights
