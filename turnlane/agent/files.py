"""Files on their way in: an upload is checked, images are scaled, and what no provider could take is refused.

Providers refuse a whole request for one image that is too large, and go on refusing it in every later turn. So
that is settled here, once, before anything is kept.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from turnlane.records.errors import FileRefusedError
from turnlane.records.files import IMAGE_TYPES, PDF_TYPE
from turnlane.records.limits import FileLimits

if TYPE_CHECKING:
    from PIL.Image import Image

_TYPE_OF: Final = {"JPEG": "image/jpeg", "PNG": "image/png", "GIF": "image/gif", "WEBP": "image/webp"}
_QUALITIES: Final = (90, 80, 65, 50)
_SHRINK: Final = 0.75
_SMALLEST_EDGE: Final = 64


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A file by its bytes, as a caller submits it. It is kept in the store; records hold a reference to it."""

    data: bytes
    media_type: str
    filename: str | None = None


@dataclass(frozen=True, kw_only=True)
class FileQuestion:
    """Whose file is to be kept."""

    conversation_id: str
    run_id: str


PersistFile = Callable[[Upload, FileQuestion], str | Awaitable[str]]
"""Keeps a file that a model generated and returns the reference that records will hold: never its content."""


def ingest(upload: Upload, limits: FileLimits) -> Upload:
    """Return the file as it may be kept: an image upright, within the limits and of the type it really is.

    An image that fits is kept byte for byte. Raises `FileRefusedError` for a file that is empty, over its
    limit, or not what it says it is. Pure, and slow for large images: call it on a thread.
    """
    if not upload.data:
        raise FileRefusedError("the file is empty", reason="empty")
    media_type = upload.media_type.lower().split(";")[0].strip()
    named = replace(upload, media_type=media_type)
    if media_type in IMAGE_TYPES:
        return _image(named, limits)
    if media_type.startswith("image/"):
        raise FileRefusedError("images are JPEG, PNG, GIF or WebP", reason="type")
    if media_type == PDF_TYPE:
        return _pdf(named, limits)
    return _sized(named, limits.other_bytes)


def _sized(upload: Upload, limit: int) -> Upload:
    if len(upload.data) > limit:
        raise FileRefusedError("the file is over the limit", reason="size", size=len(upload.data), limit=limit)
    return upload


def _pdf(upload: Upload, limits: FileLimits) -> Upload:
    # The mark may stand a little way into the file.
    if b"%PDF-" not in upload.data[:1024]:
        raise FileRefusedError("the file is not a PDF", reason="content")
    return _sized(upload, limits.pdf_bytes)


def _image(upload: Upload, limits: FileLimits) -> Upload:
    from PIL import Image, UnidentifiedImageError

    _sized(upload, limits.upload_bytes)
    try:
        with Image.open(io.BytesIO(upload.data), formats=tuple(_TYPE_OF)) as image:
            if image.width * image.height > limits.image_pixels:
                raise FileRefusedError("the image has too many pixels", reason="pixels", limit=limits.image_pixels)
            media_type = _TYPE_OF[str(image.format)]
            if max(image.size) <= limits.image_long_edge and len(upload.data) <= limits.image_bytes:
                image.verify()
                return replace(upload, media_type=media_type)
            return _scaled(upload, image, limits)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise FileRefusedError("the file is not an image that can be read", reason="content") from error


def _scaled(upload: Upload, image: Image, limits: FileLimits) -> Upload:
    """The image within the limits. An animation keeps its first frame only."""
    from PIL import ImageOps

    is_photograph = image.format == "JPEG"
    upright = ImageOps.exif_transpose(image)
    upright.thumbnail((limits.image_long_edge, limits.image_long_edge))
    for media_type, data in _encodings(upright, exact_first=not is_photograph):
        if len(data) <= limits.image_bytes:
            return replace(upload, data=data, media_type=media_type)
    raise FileRefusedError("the image cannot be made small enough", reason="size", limit=limits.image_bytes)


def _encodings(image: Image, *, exact_first: bool) -> Iterator[tuple[str, bytes]]:
    """The image in ever smaller encodings: as PNG while that is exact, then as JPEG, then with fewer pixels."""
    if exact_first:
        yield "image/png", _encoded(image, "PNG")
    flat = _flattened(image)
    while max(flat.size) >= _SMALLEST_EDGE:
        for quality in _QUALITIES:
            yield "image/jpeg", _encoded(flat, "JPEG", quality=quality)
        flat = flat.resize((max(1, int(flat.width * _SHRINK)), max(1, int(flat.height * _SHRINK))))


def _flattened(image: Image) -> Image:
    """The image on white: a JPEG has no transparency."""
    from PIL import Image as images

    if "A" not in image.mode and "transparency" not in image.info:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    ground = images.new("RGB", image.size, "white")
    ground.paste(clear, mask=clear.getchannel("A"))
    return ground


def _encoded(image: Image, kind: str, **options: int) -> bytes:
    out = io.BytesIO()
    # A palette, greys and colours with or without transparency are what PNG and JPEG both know.
    plain = image if image.mode in ("L", "LA", "P", "RGB", "RGBA") or kind == "JPEG" else image.convert("RGBA")
    plain.save(out, kind, optimize=True, **options)
    return out.getvalue()
