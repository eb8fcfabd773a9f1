"""A stored picture as pixels of one size. Pictures come from strangers: kind and size are checked before decoding."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.optional_libraries import needing

MAX_PIXELS = 64 * 2**20
"""Of a picture before it is made smaller: 64 megapixels take 200 MB while it is decoded."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""Those that data sets have; other decoders of the library never see a stranger's bytes."""


def check_pictures() -> None:
    """Before pictures are decoded.

    Raises:
        UsageFault: Pillow is not installed.
    """
    with needing("decoding pictures", "PIL", "hf"):
        import PIL.Image  # noqa: F401


def content_of(value: Any) -> bytes | None:
    """The bytes of a stored picture, as a column of bytes or as the `datasets` library stores it; None: it is none."""
    if isinstance(value, dict):
        value = value.get("bytes")
    return bytes(value) if isinstance(value, bytes | bytearray) else None


def pixels_of(content: bytes, channels: int, size: int) -> NDArray[np.uint8] | None:
    """uint8 [channels * size * size], channel by channel: scaled to the shorter side, the middle of the longer one.

    None: it is no picture that can be decoded, or too large.
    """
    import PIL.Image
    import PIL.ImageOps

    try:
        with PIL.Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                return None
            plain = picture.convert("L" if channels == 1 else "RGB")
        fitted = PIL.ImageOps.fit(plain, (size, size), PIL.Image.Resampling.BICUBIC)
    except (OSError, ValueError, SyntaxError, MemoryError, PIL.Image.DecompressionBombError):
        # Whatever a decoder raises at broken bytes.
        return None
    values = np.asarray(fitted, np.uint8).reshape(size, size, -1)
    return np.ascontiguousarray(values.transpose(2, 0, 1)).reshape(-1)
