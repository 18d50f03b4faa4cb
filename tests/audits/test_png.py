import base64
import struct
import zlib

import pytest
import torch

from sketchfed.audits.png import dimensions, png_base64
from sketchfed.errors import InputError


def decoded(text: str) -> tuple[int, torch.Tensor]:
    """The colour type and the pixels `(channels, height, width)` of a PNG without filters; checks every chunk."""
    file = base64.b64decode(text, validate=True)
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(file):
        length, kind = struct.unpack(">I4s", file[place : place + 8])
        content, check = file[place + 8 : place + 8 + length], file[place + 8 + length : place + 12 + length]
        assert struct.unpack(">I", check)[0] == zlib.crc32(kind + content)
        chunks[kind], place = content, place + 12 + length
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, bits, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (bits, rest) == (8, [0, 0, 0])
    rows = torch.frombuffer(bytearray(zlib.decompress(chunks[b"IDAT"])), dtype=torch.uint8).reshape(height, -1)
    assert not rows[:, 0].any()
    return colour, rows[:, 1:].reshape(height, width, -1).permute(2, 0, 1)


@pytest.mark.parametrize(("channels", "colour"), [(1, 0), (3, 2)])
def test_a_picture_comes_back_to_the_nearest_of_256_levels(channels, colour):
    image = torch.rand(channels, 5, 7, generator=torch.Generator().manual_seed(1))
    found, pixels = decoded(png_base64(image))
    assert found == colour
    assert pixels.shape == image.shape
    assert (pixels.double() / 255 - image).abs().max() <= 0.5 / 255 + 1e-9


def test_rows_and_columns_and_colours_keep_their_places():
    image = torch.zeros(3, 2, 3)
    image[2, 0, 1] = 1.0
    assert torch.equal(decoded(png_base64(image))[1], (255 * image).to(torch.uint8))


def test_what_lies_outside_of_zero_and_one_is_cut():
    assert decoded(png_base64(torch.tensor([[[-0.5, 1.5]]])))[1].tolist() == [[[0, 255]]]


def test_a_picture_may_be_a_view_in_any_precision_and_with_gradients():
    image = torch.rand(4, 6, generator=torch.Generator().manual_seed(2)).t()[None].half().requires_grad_()
    assert decoded(png_base64(image))[1].shape == (1, 6, 4)


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 8), (1, 1, 8, 8), (1, 0, 8)])
def test_a_shape_that_is_no_picture_is_refused(shape):
    with pytest.raises(InputError, match=r"1 or 3 channels.*Reshape"):
        png_base64(torch.zeros(shape))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_guess_that_diverged_is_not_drawn(value):
    with pytest.raises(InputError, match="failure of the attack"):
        png_base64(torch.full((1, 2, 2), value))


def test_dimensions_are_read_from_a_picture_and_from_nothing_else():
    assert dimensions(png_base64(torch.zeros(3, 28, 32))) == (32, 28)
    for text in ("", "AAAA", "ü" * 40, '"><script>', base64.b64encode(bytes(40)).decode()):
        assert dimensions(text) is None
