import hashlib
import http.client
import io
import os
import pickle
import stat
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from asgnn.errors import DataCorrupt, DataUnavailable
from asgnn.graphs import Source, fetch, read_npz
from asgnn.graphs import sources as module

CONTENT = b"a graph" * 20_000
SOURCE = Source("someone/graphs", "c0ffee", "data/graph.npz", hashlib.sha256(CONTENT).hexdigest())


def place(folder: Path, content: bytes = CONTENT) -> Path:
    path = SOURCE.within(folder)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


class Answer(io.BytesIO):
    """An HTTP response; reading it raises ``then`` if given."""

    def __init__(self, content: bytes, then: BaseException | None = None) -> None:
        super().__init__(content)
        self.then = then

    def read(self, size=-1):
        if self.then is not None:
            raise self.then
        return super().read(size)


@pytest.fixture
def server(monkeypatch):
    """Replaces the network: returns prepared answers and records requests and sleeps."""

    server = SimpleNamespace(answers=[], requests=[], slept=[])

    def urlopen(request, timeout):
        assert 0 < timeout <= 30
        server.requests.append(request.full_url)
        answer = server.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    monkeypatch.setattr(time, "sleep", server.slept.append)
    return server


def files_under(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_url():
    assert SOURCE.url == "https://raw.githubusercontent.com/someone/graphs/c0ffee/data/graph.npz"


@pytest.mark.parametrize(
    ("owner_repo", "path"),
    [("a/b", "../../x"), ("a/b", "/etc/passwd"), ("a/..", "x"), ("/a", "x"), ("a/b", "..\\x")],
)
def test_no_path_leads_out_of_the_folder(tmp_path, owner_repo, path):
    with pytest.raises(DataUnavailable, match="not a path inside"):
        fetch(Source(owner_repo, "c", path, "0"), tmp_path)


CACHE_RULES = [
    ({"ASGNN_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
    ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/asgnn"),
    ({"ASGNN_CACHE": "", "XDG_CACHE_HOME": "relative", "HOME": "/users/me"}, "/users/me/.cache/asgnn"),
    ({"HOME": "/users/me"}, "/users/me/.cache/asgnn"),
]


@pytest.mark.parametrize(("environment", "folder"), CACHE_RULES)
def test_cache_folder(monkeypatch, environment, folder):
    for name in ("ASGNN_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert module.cache_folder() == Path(folder)
    assert module.cache_folder("/root") == Path("/root")


def test_cache_before_mirror_before_download(tmp_path, monkeypatch, server):
    server.answers.append(Answer(CONTENT))
    downloaded = fetch(SOURCE)
    assert downloaded == SOURCE.within(tmp_path / "cache")
    assert downloaded.read_bytes() == CONTENT
    assert server.requests == [SOURCE.url]
    assert files_under(tmp_path) == ["graph.npz"]
    # The file has the user's default permissions.
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(downloaded.stat().st_mode) == 0o666 & ~umask

    mirrored = place(tmp_path / "mirror")
    monkeypatch.setenv("ASGNN_MIRROR", str(tmp_path / "mirror"))
    assert fetch(SOURCE) == downloaded
    assert fetch(SOURCE, tmp_path / "elsewhere") == mirrored
    assert not (tmp_path / "elsewhere").exists()
    assert len(server.requests) == 1


@pytest.mark.parametrize("damaged", [CONTENT[:-1], b"", CONTENT[:-1] + b"!"], ids=["cut", "empty", "tampered"])
def test_a_damaged_cached_file_is_fetched_again(tmp_path, server, damaged):
    cached = place(tmp_path / "cache", damaged)
    server.answers.append(Answer(CONTENT))
    assert fetch(SOURCE) == cached
    assert cached.read_bytes() == CONTENT


def test_a_damaged_cached_file_is_named_if_there_is_no_other(tmp_path):
    cached = place(tmp_path / "cache", b"damaged")
    with pytest.raises(DataUnavailable, match=f"the file at {cached} has SHA-256"):
        fetch(SOURCE)


def test_a_tampered_mirror_file_is_an_error(tmp_path, monkeypatch, server):
    mirrored = place(tmp_path / "mirror", b"tampered")
    monkeypatch.setenv("ASGNN_MIRROR", str(tmp_path / "mirror"))
    found = hashlib.sha256(b"tampered").hexdigest()
    with pytest.raises(DataCorrupt, match=f"{mirrored} has SHA-256 {found} instead of {SOURCE.sha256}"):
        fetch(SOURCE)
    assert not server.requests


def test_a_mirror_that_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ASGNN_MIRROR", str(tmp_path / "nowhere"))
    with pytest.raises(DataUnavailable, match=r"ASGNN_MIRROR is set to .*nowhere, which is not a folder"):
        fetch(SOURCE)


def test_without_network_the_message_names_both_remedies(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("must not wait if the name does not resolve"))
    with pytest.raises(DataUnavailable) as caught:
        fetch(SOURCE)
    sentence = str(caught.value)
    for words in (
        "data/graph.npz of someone/graphs",
        SOURCE.url,
        "Name or service not known",
        "set ASGNN_MIRROR to a folder that contains someone/graphs/data/graph.npz",
        f"put the file at {SOURCE.within(tmp_path / 'cache')}",
    ):
        assert words in sentence
    assert "\n" not in sentence
    assert not (tmp_path / "cache").exists()


def http_error(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError(SOURCE.url, code, "reason", {}, None)


TEMPORARY = {
    "reset": ConnectionResetError(104, "Connection reset by peer"),
    "reset while connecting": urllib.error.URLError(ConnectionResetError(104, "Connection reset by peer")),
    "busy": http_error(503),
    "too many": http_error(429),
    "silence": TimeoutError("timed out"),
    "nonsense": http.client.BadStatusLine("?"),
    "cut short": Answer(CONTENT[:100_000]),
    "reset midway": Answer(b"", then=ConnectionResetError()),
}


@pytest.mark.parametrize("failure", TEMPORARY.keys())
def test_temporary_errors_are_retried(tmp_path, server, failure):
    answer = TEMPORARY[failure]
    server.answers += [answer, Answer(CONTENT)]
    assert fetch(SOURCE).read_bytes() == CONTENT
    assert len(server.requests) == 2
    assert 0 < sum(server.slept) < 2


def test_three_attempts_and_no_more(tmp_path, server):
    server.answers += [http_error(500), http_error(502), http_error(503), Answer(CONTENT)]
    with pytest.raises(DataUnavailable, match="HTTP Error 503: reason"):
        fetch(SOURCE)
    assert len(server.requests) == 3
    assert sum(server.slept) < 5
    assert files_under(tmp_path) == []


PERMANENT = {
    "not found": (http_error(404), "HTTP Error 404"),
    "no route": (urllib.error.URLError(OSError(101, "Network is unreachable")), "Network is unreachable"),
    "refused": (
        urllib.error.URLError(ConnectionRefusedError(111, "Connection refused")),
        "Connection refused",
    ),
    "nobody answers": (urllib.error.URLError(TimeoutError("timed out")), "timed out"),
}


@pytest.mark.parametrize(("failure", "words"), PERMANENT.values(), ids=PERMANENT.keys())
def test_permanent_errors_are_not_retried(server, failure, words):
    server.answers.append(failure)
    with pytest.raises(DataUnavailable, match=words):
        fetch(SOURCE)
    assert len(server.requests) == 1
    assert server.slept == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_download_leaves_nothing(tmp_path, server, interruption):
    server.answers.append(Answer(b"", then=interruption()))
    with pytest.raises(interruption):
        fetch(SOURCE)
    assert files_under(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, server, step, error):
    def fail(*_):
        raise error

    server.answers.append(Answer(CONTENT))
    monkeypatch.setattr(os, step, fail)
    expected = DataUnavailable if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        fetch(SOURCE)
    assert files_under(tmp_path) == []
    if expected is DataUnavailable:
        assert "No space left on device; free some space or set ASGNN_CACHE" in str(caught.value)


def test_a_cache_that_cannot_be_made(tmp_path, monkeypatch, server):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ASGNN_CACHE", str(tmp_path / "file"))
    server.answers.append(Answer(CONTENT))
    with pytest.raises(DataUnavailable, match=r"could not be written: .*set ASGNN_CACHE"):
        fetch(SOURCE)


def test_a_cached_path_that_is_a_folder(tmp_path):
    SOURCE.within(tmp_path / "cache").mkdir(parents=True)
    with pytest.raises(DataUnavailable, match=r"graph\.npz cannot be read: Is a directory"):
        fetch(SOURCE)


def test_a_download_with_the_wrong_hash_is_not_kept(tmp_path, server):
    server.answers += [Answer(b"something else") for _ in range(3)]
    with pytest.raises(DataCorrupt, match=f"has SHA-256 .* instead of {SOURCE.sha256} and was discarded"):
        fetch(SOURCE)
    assert files_under(tmp_path) == []


def test_a_download_without_end_is_stopped(tmp_path, monkeypatch, server):
    monkeypatch.setattr(module, "MAX_DOWNLOAD", 1 << 20)

    class Endless(Answer):
        def read(self, size=-1):
            assert 0 < size <= 1 << 20
            return bytes(size)

    server.answers += [Endless(b"") for _ in range(3)]
    with pytest.raises(DataCorrupt, match=r"has SHA-256 .* was discarded"):
        fetch(SOURCE)
    assert files_under(tmp_path) == []


@pytest.mark.parametrize("place", ["/dev/zero", "pipe"])
def test_devices_and_pipes_are_not_read(tmp_path, place):
    path = tmp_path / place
    if place == "pipe":
        os.mkfifo(path)
    for read in (module.hash_of, lambda path: read_npz(path, ["a"])):
        with pytest.raises(DataUnavailable, match="is a device or a pipe, not a file"):
            read(path)


def test_only_files_are_replaced(tmp_path):
    pipe, link, folder = tmp_path / "pipe", tmp_path / "link", tmp_path / "folder"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    folder.mkdir()
    for path in (pipe, link, folder):
        with pytest.raises(DataUnavailable, match="could not be written: it exists and is not a file"):
            module.write_file(path, b"content")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


def test_invalid_file_names():
    for name in ("a\0b", "\ud800"):
        with pytest.raises(DataUnavailable, match="cannot be read"):
            read_npz(Path(name), ["a"])
        with pytest.raises(DataUnavailable, match="could not be written"):
            module.write_file(Path(name), b"")


# --- archives ---


def npz(path: Path, **arrays) -> Path:
    np.savez_compressed(path, **arrays)
    return path


ARRAYS = {
    "matrix": np.arange(6.0).reshape(2, 3),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "empty": np.empty((0, 4), dtype=np.float32),
    "scalar": np.array(7),
    "text": np.array(["a", "bcd"]),
    "bytes": np.array(b"csr"),
    "big": np.arange(3, dtype=">i4"),
}


def test_read_npz_equals_numpy(tmp_path):
    path = npz(tmp_path / "a.npz", **ARRAYS)
    found = read_npz(path, ARRAYS, optional=["absent"])
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable


class Trap:
    """Fails the test when unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def test_pickled_objects_are_never_loaded(tmp_path):
    trap = np.empty(1, dtype=object)
    trap[0] = Trap()
    path = npz(tmp_path / "a.npz", trap=trap, good=np.ones(2))
    assert read_npz(path, ["good"])["good"].tolist() == [1, 1]
    with pytest.raises(DataCorrupt, match=r"trap in .*a\.npz is damaged: Object arrays cannot be loaded"):
        read_npz(path, ["trap"])
    bare = tmp_path / "b.npz"
    bare.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataCorrupt, match="not a zip archive"):
        read_npz(bare, ["trap"])


def with_member(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", content)
    return path


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


MEMBERS = {
    "no header": b"",
    "not npy": b"hello, this is no array",
    "version": b"\x93NUMPY\x09\x00" + bytes(20),
    "cut header": header("(2,)")[:20],
    "code in header": header("(__import__('os'),)"),
    "too few bytes": header("(2,)") + bytes(8),
    "too many bytes": header("(2,)") + bytes(24),
    "memory bomb": header("(1000000000000,)") + bytes(16),
    "negative shape": header("(-1, -2)") + bytes(16),
    "strange dtype": header("(2,)", "'nonsense'") + bytes(16),
    "deep": header("(" * 3000),
}


@pytest.mark.parametrize("content", MEMBERS.values(), ids=MEMBERS.keys())
def test_damaged_arrays(tmp_path, content):
    with pytest.raises(DataCorrupt, match=r"a in .*x\.npz is damaged") as caught:
        read_npz(with_member(tmp_path / "x.npz", content), ["a"])
    assert str(caught.value).endswith(".")


def test_damaged_archives_raise_data_corrupt(tmp_path):
    """Any damage raises DataCorrupt or leaves the array intact."""
    array = np.arange(200)
    whole = npz(tmp_path / "a.npz", a=array).read_bytes()
    path = tmp_path / "b.npz"
    generator = np.random.default_rng(0)
    damaged = [whole[:length] for length in range(0, len(whole), 7)]
    for at in generator.integers(len(whole), size=200):
        changed = bytearray(whole)
        changed[at] ^= 1 << generator.integers(8)
        damaged.append(bytes(changed))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            assert np.array_equal(read_npz(path, ["a"])["a"], array)
        except DataCorrupt:
            refused += 1
    assert refused > 0.7 * len(damaged)


def test_missing_array_and_missing_file(tmp_path):
    path = npz(tmp_path / "a.npz", a=np.ones(1))
    with pytest.raises(DataCorrupt, match=r"a\.npz does not contain b\."):
        read_npz(path, ["a", "b"])
    with pytest.raises(DataUnavailable, match=r"no file .*c\.npz"):
        read_npz(tmp_path / "c.npz", ["a"])
    with pytest.raises(DataUnavailable, match="cannot be read: Is a directory"):
        read_npz(tmp_path, ["a"])


def test_a_zip_bomb_is_refused_by_its_declared_size(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_UNPACKED", 1 << 20)
    path = npz(tmp_path / "bomb.npz", a=np.zeros(1 << 18), small=np.ones(1))
    assert path.stat().st_size < 10_000
    assert read_npz(path, ["small"])["small"] == 1
    with pytest.raises(DataCorrupt, match="would unpack to 2 MiB"):
        read_npz(path, ["a"])
