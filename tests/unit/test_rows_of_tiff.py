"""Rows of a TIFF file are those of its image, however its stripes or tiles lie in it.

tifffile, an extra, reads the list of stripes or tiles and unpacks one; the rest is ours. Here a few
lines stand for it, which know a page without compression, so that this is tried wherever the tests
run: which pieces are read for some rows, and where each of them goes.
"""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooctrain.data import RowImage
from ooctrain.errors import DataFormatError

#: What the file begins with, so that no piece lies at its beginning.
HEAD = b"head"
NATIVE = "<" if sys.byteorder == "little" else ">"


@dataclass
class Page:
    """The first page of a file, in the words of tifffile.

    Args:
        image: (H, W, C).
        piece: rows and columns of a tile; columns None: it has stripes.
        planar: each channel has pieces of its own.
        never: numbers of the tiles that were not written.
        byteorder: of the file.
    """

    image: np.ndarray
    piece: tuple[int, int | None]
    planar: bool = False
    never: frozenset[int] = frozenset()
    byteorder: str = NATIVE
    photometric: int = 2
    imagedepth: int = 1
    jpegtables: bytes | None = None
    unpacked: list[int] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        height, width, channels = self.image.shape
        tall, wide = self.piece
        self.is_tiled, wide = wide is not None, wide or width
        self.tilelength, self.tilewidth = tall, wide
        self.rowsperstrip = tall
        self.imagelength, self.imagewidth, self.samplesperpixel = height, width, channels
        self.planarconfig = 2 if self.planar else 1
        self.dtype = self.image.dtype
        self.parent = SimpleNamespace(byteorder=self.byteorder)
        groups = [(c, c + 1) for c in range(channels)] if self.planar else [(0, channels)]
        self.places = [
            (group, row, column) for group in groups
            for row in range(0, height, tall) for column in range(0, width, wide)
        ]  # fmt: skip
        self.pieces = []
        for (first, last), row, column in self.places:
            part = self.image[row : row + tall, column : column + wide, first:last]
            if self.is_tiled:  # tiles at the edges are whole, with anything in them
                missing = tall - part.shape[0], wide - part.shape[1]
                part = np.pad(part, [(0, missing[0]), (0, missing[1]), (0, 0)], mode="edge") + 0
                part[tall - missing[0] :], part[:, wide - missing[1] :] = 77, 77
            self.pieces.append(np.ascontiguousarray(part))
        for number in self.never:
            (first, last), row, column = self.places[number]
            self.image[row : row + tall, column : column + wide, first:last] = 0
        sizes = [0 if i in self.never else p.nbytes for i, p in enumerate(self.pieces)]
        begins = itertools.accumulate(sizes[:-1], initial=len(HEAD))
        self.dataoffsets, self.databytecounts = list(begins), sizes
        self.is_memmappable = not self.is_tiled  # of several planes too, which are no (H, W, C)

    def content(self) -> bytes:
        """The file."""
        order = self.image.dtype.newbyteorder(self.byteorder)
        kept = [p.astype(order).tobytes() for i, p in enumerate(self.pieces) if i not in self.never]
        return HEAD + b"".join(kept)

    def decode(self, packed: bytes | None, number: int, **options: Any) -> tuple[Any, Any, Any]:
        """As tifffile does it: with an axis of depth, and where the piece begins."""
        self.unpacked.append(number)
        self.options.append(options)
        (first, _), row, column = self.places[number]
        place, shape = (first, 0, row, column, 0), self.pieces[number].shape
        if packed is None:
            return None, place, shape
        order = self.image.dtype.newbyteorder(self.byteorder)
        found = np.frombuffer(packed, order).astype(self.image.dtype)
        return found.reshape(1, *shape), place, shape


def opened(page: Page, folder, monkeypatch) -> RowImage:
    path = folder / "a.tif"
    path.write_bytes(page.content())
    module = ModuleType("tifffile")
    module.TiffFile = lambda file: SimpleNamespace(pages=[page])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tifffile", module)
    return RowImage(path)


def image(height: int, width: int, channels: int, kind: str = "uint8") -> np.ndarray:
    count = height * width * channels
    return (np.arange(1, count + 1) * 37 % 251).astype(kind).reshape(height, width, channels)


def rows_are_those_of_the_image(made: RowImage, page: Page) -> None:
    whole, height = page.image.transpose(2, 0, 1), page.image.shape[0]
    for lo, hi in itertools.combinations(range(height + 1), 2):
        page.unpacked.clear()
        assert np.array_equal(np.asarray(made.rows(0, lo, hi))[0], whole[:, lo:hi])
        wanted = [
            number for number, (_, row, _) in enumerate(page.places)
            if row < hi and row + page.piece[0] > lo
        ]  # fmt: skip
        assert page.unpacked == ([] if page.is_memmappable and not page.planar else wanted)


@given(
    height=st.integers(1, 7), width=st.integers(1, 6), channels=st.integers(1, 3),
    tall=st.integers(1, 9), wide=st.none() | st.integers(1, 7), planar=st.booleans(),
    kind=st.sampled_from(("uint8", "float32")), data=st.data(),
)  # fmt: skip
def test_rows_come_from_the_pieces_in_which_they_lie(
    height, width, channels, tall, wide, planar, kind, data, tmp_path_factory
):
    piece = (tall if wide else min(tall, height), wide)
    count = len(Page(image(height, width, channels), piece, planar).places)
    never = data.draw(st.frozensets(st.integers(0, count - 1))) if wide else frozenset[int]()
    page = Page(image(height, width, channels, kind), piece, planar, never)
    with pytest.MonkeyPatch.context() as patch:
        made = opened(page, tmp_path_factory.mktemp("tiff"), patch)
        assert (made.shape, made.dtype) == ((1, channels, height, width), kind)
        rows_are_those_of_the_image(made, page)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_what_lies_as_the_machine_reads_it_is_mapped(order, kind, tmp_path, monkeypatch):
    page = Page(image(6, 5, 3, kind), (2, None), byteorder=order)
    made = opened(page, tmp_path, monkeypatch)
    native = kind == "uint8" or order == NATIVE
    assert isinstance(made.rows(0, 1, 4).read(), np.memmap) == native
    assert np.array_equal(np.asarray(made.rows(0, 1, 4))[0], page.image[1:4].transpose(2, 0, 1))
    # Where it is unpacked, whether it can be is known when the file is opened.
    assert page.unpacked == ([] if native else [0, 0, 1, 0, 1])


def test_stripes_without_a_height_are_one(tmp_path, monkeypatch):
    page = Page(image(5, 4, 2), (5, None), planar=True)
    page.rowsperstrip = None
    made = opened(page, tmp_path, monkeypatch)
    assert np.array_equal(np.asarray(made.rows(0, 2, 3))[0], page.image[2:3].transpose(2, 0, 1))


def test_tables_that_pieces_share_are_given_to_each(tmp_path, monkeypatch):
    page = Page(image(4, 4, 1), (2, 2), jpegtables=b"tables")
    np.asarray(opened(page, tmp_path, monkeypatch).rows(0, 0, 4))
    assert page.options == [{"jpegtables": b"tables"}] * 5
    page = Page(image(4, 4, 1), (2, 2))
    np.asarray(opened(page, tmp_path, monkeypatch).rows(0, 0, 1))
    assert page.options == [{}] * 3


@pytest.mark.parametrize(("changed", "words"), [
    ({"photometric": 3}, "palette"), ({"imagedepth": 2}, "volume"),
    ({"photometric": 2, "imagelength": None}, "no TIFF that can be read"),
])  # fmt: skip
def test_what_is_no_image_is_refused(changed, words, tmp_path, monkeypatch):
    page = Page(image(4, 4, 1), (2, 2))
    for name, value in changed.items():
        setattr(page, name, value)
    with pytest.raises(DataFormatError, match=words) as refusal:
        opened(page, tmp_path, monkeypatch)
    assert refusal.value.path == str(tmp_path / "a.tif")


def test_a_file_that_ends_too_early_is_refused_and_says_how_much_is_missing(tmp_path, monkeypatch):
    page = Page(image(4, 4, 1), (2, 2))
    whole = page.content()
    assert opened(page, tmp_path, monkeypatch).shape == (1, 1, 4, 4)
    monkeypatch.setattr(Page, "content", lambda _: whole[:-5])
    with pytest.raises(DataFormatError) as refusal:
        opened(page, tmp_path, monkeypatch)
    assert refusal.value.offset == len(whole) - 5
    assert refusal.value.numbers.startswith("2 of 4 ")
    assert f" {len(whole) - 5} bytes" in refusal.value.numbers


def test_a_piece_that_cannot_be_unpacked_is_named(tmp_path, monkeypatch):
    page = Page(image(4, 4, 1), (2, 2))
    made = opened(page, tmp_path, monkeypatch)

    def fail(packed, number, **_):
        raise ValueError("no such codec")

    monkeypatch.setattr(page, "decode", fail)
    with pytest.raises(DataFormatError, match="no such codec") as refusal:
        np.asarray(made.rows(0, 2, 4))
    assert refusal.value.numbers == "stripe or tile 2"
