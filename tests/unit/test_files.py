"""Files on their way in: kept as they are, scaled, or refused."""

from __future__ import annotations

import io
from typing import Any

import pytest
from PIL import Image

from turnlane.agent import Upload
from turnlane.agent.files import ingest
from turnlane.records.errors import FileRefusedError
from turnlane.records.files import blob_of, blob_reference
from turnlane.records.limits import FileLimits

LIMITS = FileLimits()


def _image(size: tuple[int, int], kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.new(mode, size).save(out, kind, **options)
    return out.getvalue()


def _noise(size: tuple[int, int], kind: str, mode: str = "RGB") -> bytes:
    """An image that hardly compresses."""
    channels = [Image.effect_noise(size, 100.0) for _ in range(len(mode))]
    out = io.BytesIO()
    Image.merge(mode, channels).save(out, kind)
    return out.getvalue()


def _size(upload: Upload) -> tuple[int, int]:
    with Image.open(io.BytesIO(upload.data)) as image:
        return image.size


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_an_image_that_fits_is_kept_byte_for_byte(kind: str) -> None:
    upload = Upload(data=_image((200, 100), kind), media_type=f"image/{kind.lower()}", filename="small")

    assert upload == ingest(upload, LIMITS)


def test_a_long_image_is_scaled_to_the_long_edge() -> None:
    upload = Upload(data=_image((2162, 322)), media_type="image/png")

    assert (2000, 298) == _size(ingest(upload, LIMITS))


def test_an_image_over_the_bytes_is_made_to_fit_whatever_it_shows() -> None:
    limits = FileLimits(image_bytes=60_000)
    upload = Upload(data=_noise((900, 700), "PNG"), media_type="image/png")

    kept = ingest(upload, limits)

    assert ("image/jpeg", True) == (kept.media_type, len(kept.data) <= limits.image_bytes)


def test_transparency_becomes_white_when_an_image_turns_into_a_jpeg() -> None:
    limits = FileLimits(image_bytes=30_000)
    ground = Image.open(io.BytesIO(_noise((500, 500), "PNG", "RGBA")))
    ground.putalpha(0)
    out = io.BytesIO()
    ground.save(out, "PNG")

    kept = ingest(Upload(data=out.getvalue(), media_type="image/png"), limits)

    with Image.open(io.BytesIO(kept.data)) as image:
        assert ("JPEG", (255, 255, 255)) == (image.format, image.convert("RGB").getpixel((10, 10)))


def test_a_photograph_that_lies_on_its_side_is_put_upright_when_it_is_scaled() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    upload = Upload(data=_image((3000, 1000), "JPEG", exif=exif), media_type="image/jpeg")

    assert (667, 2000) == _size(ingest(upload, LIMITS))


def test_an_image_gets_the_type_it_really_has() -> None:
    upload = Upload(data=_image((10, 10), "JPEG"), media_type="image/png")

    assert "image/jpeg" == ingest(upload, LIMITS).media_type


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (Upload(data=b"", media_type="image/png"), "empty"),
        (Upload(data=b"not an image", media_type="image/png"), "content"),
        (Upload(data=_image((40, 40))[:40], media_type="image/png"), "content"),
        (Upload(data=_image((40, 40), "BMP"), media_type="image/bmp"), "type"),
        (Upload(data=_image((40, 40), "BMP"), media_type="image/png"), "content"),
        (Upload(data=_image((200, 200), mode="1"), media_type="image/png"), "pixels"),
        (Upload(data=b"no mark", media_type="application/pdf"), "content"),
        (Upload(data=b"%PDF-" + bytes(2000), media_type="application/pdf"), "size"),
        (Upload(data=bytes(2000), media_type="application/zip"), "size"),
    ],
)
def test_what_cannot_be_taken_is_refused_with_the_reason(upload: Upload, reason: str) -> None:
    limits = FileLimits(image_pixels=10_000, pdf_bytes=1000, other_bytes=1000)

    with pytest.raises(FileRefusedError) as caught:
        ingest(upload, limits)

    assert reason == caught.value.details["reason"]


def test_a_media_type_is_read_without_its_parameters_and_case() -> None:
    upload = Upload(data=b"hello", media_type="Text/Plain; charset=utf-8")

    assert "text/plain" == ingest(upload, LIMITS).media_type


@pytest.mark.parametrize(("reference", "blob_id"), [("blob:x", "x"), ("https://example.org/blob:x", None), ("x", None)])
def test_a_reference_names_a_blob_or_something_else(reference: str, blob_id: str | None) -> None:
    assert blob_id == blob_of(reference)


def test_a_blob_reference_names_its_blob() -> None:
    assert "b-1" == blob_of(blob_reference("b-1"))
