"""Images as PNG files in base64, for a page that contains everything that it shows."""

import base64
import struct
import zlib

import torch
from torch import Tensor

from sketchfed.errors import InputError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 3: 2}
"""PNG's numbers for grey images and for RGB images."""


def png_base64(image: Tensor) -> str:
    """Encode an image `(channels, height, width)` with values from 0 to 1 in 8 bits. One channel is grey, three are RGB.

    Values outside are clipped, because an attack's guess may have them. Pixels are not enlarged. The page does that.
    """
    if image.ndim != 3 or image.shape[0] not in _COLOUR_TYPES or not image.numel():
        raise InputError(
            f"a picture has shape (channels, height, width) with 1 or 3 channels, got {tuple(image.shape)}. Reshape it."
        )
    if not bool(image.isfinite().all()):
        raise InputError("a picture of NaN or infinite values cannot be drawn. Count this guess as a failure of the attack.")
    channels, height, width = image.shape
    pixels = (255 * image.detach().cpu().double().clamp(0, 1)).round().to(torch.uint8)
    rows = pixels.permute(1, 2, 0).reshape(height, width * channels).numpy()
    file = (
        _SIGNATURE
        + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0))
        + _chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 9))  # 0: rows are not filtered
        + _chunk(b"IEND", b"")
    )
    return base64.b64encode(file).decode("ascii")


def dimensions(file: str) -> tuple[int, int] | None:
    """The width and height of a PNG file in base64. None if it is no PNG file, because records come from files."""
    try:
        start = base64.b64decode(file[:32], validate=True)
    except ValueError:
        return None
    if len(start) < 24 or not start.startswith(_SIGNATURE):
        return None
    width, height = struct.unpack(">II", start[16:24])
    return width, height


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
