"""Data sets that are fetched: once, compared with a checksum, and never without being asked."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
from functools import partial

import numpy as np
import pytest

from ooctrain import data
from ooctrain.data import download
from ooctrain.data.cifar10 import RECORD_BYTES, TEST_FILES, TRAIN_FILES
from ooctrain.errors import ConfigError, DataFormatError

ARCHIVE = "cifar-10-binary.tar.gz"


def packed() -> bytes:
    """An archive like the authors', with three images in each file."""
    raw, rng = io.BytesIO(), np.random.default_rng(0)
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name in (*TRAIN_FILES, *TEST_FILES):
            records = rng.integers(0, 10, (3, RECORD_BYTES), dtype=np.uint8).tobytes()
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            entry.size = len(records)
            archive.addfile(entry, io.BytesIO(records))
    return raw.getvalue()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.fixture
def authors(tmp_path, monkeypatch):
    """A page that gives the archive; yields its file."""
    pytest.importorskip("pooch")
    folder = tmp_path / "page"
    folder.mkdir()
    content = packed()
    (folder / ARCHIVE).write_bytes(content)
    handler = partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/{ARCHIVE}"
    monkeypatch.setenv("OOCTRAIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "CIFAR10_URL", address)
    monkeypatch.setattr(download, "CIFAR10_HASH", f"md5:{hashlib.md5(content).hexdigest()}")
    yield folder / ARCHIVE
    server.shutdown()
    server.server_close()


def test_a_data_set_is_fetched_once_and_then_found(authors, tmp_path):
    with pytest.raises(ConfigError, match="needs the folder") as refused:
        data.load("cifar10")
    assert "--download" in refused.value.fix
    assert len(data.load("cifar10", download=True)) == 15
    authors.unlink()
    assert len(data.load("cifar10", download=True)) == 15
    assert len(data.load("cifar10", train=False)) == 3
    assert (tmp_path / "cache" / "data" / "cifar10").is_dir()


def test_a_folder_of_one_s_own_is_filled(authors, tmp_path):
    folder = tmp_path / "mine"
    assert len(data.load(f"cifar10:{folder}", download=True)) == 15
    assert len(data.cifar10(folder)) == 15


def test_an_archive_that_is_not_the_authors_is_refused(authors, tmp_path):
    authors.write_bytes(authors.read_bytes()[:-1] + b"?")
    with pytest.raises(DataFormatError, match="cannot be fetched") as refused:
        data.load("cifar10", download=True)
    assert "by hand" in refused.value.fix
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_a_page_that_is_gone_is_one_error(authors):
    authors.unlink()
    with pytest.raises(DataFormatError, match="cannot be fetched"):
        data.load("cifar10", download=True)


@pytest.mark.parametrize("name", ["digits", "mnist:nowhere"])
def test_what_nobody_may_fetch_says_so(name):
    with pytest.raises(ConfigError, match="is not fetched") as refused:
        data.load(name, download=True)
    assert "cifar10" in refused.value.fix


def test_without_pooch_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pooch", None)
    with pytest.raises(ConfigError, match="pooch"):
        data.load(f"cifar10:{tmp_path}", download=True)
