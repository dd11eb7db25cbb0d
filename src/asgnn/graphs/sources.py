"""Data files of other people: found in the cache, in a mirror or at their address, believed by their hash.

The cache is ``$ASGNN_CACHE``, else ``$XDG_CACHE_HOME/asgnn``, else ``~/.cache/asgnn``, and is made when it is
needed. ``$ASGNN_MIRROR`` is a folder of files that are already here. Both hold ``OWNER/REPO/PATH``.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import io
import math
import os
import secrets
import stat
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asgnn.errors import DataCorrupt, DataUnavailable

# Repository and commit of the three collections the tables of this package point into.
GNN_META_ATTACK = ("danielzuegner/gnn-meta-attack", "982d900d05f19f0bd061b8d4988310bd7baa5f91")
PRO_GNN = ("ChandlerBang/Pro-GNN", "90e11956bf8145dc2ff441fc9923bc95b535f289")
HETEROPHILOUS = ("yandex-research/heterophilous-graphs", "a431395582e929d88271309716bea4fe24ce6318")

WAITS = (0.5, 1.0)  # seconds before the second and the third attempt
TIMEOUT = 10.0  # seconds without a sign of life
MAX_DOWNLOAD = 64 << 20  # bytes; the largest file in the tables has under 2 MiB
MAX_UNPACKED = 512 << 20  # bytes of arrays or text out of one archive


@dataclass(frozen=True)
class Source:
    """One file at one commit of a public repository, and the hash it must have."""

    owner_repo: str
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.owner_repo}/{self.commit}/{self.path}"

    def within(self, folder: Path) -> Path:
        """Where a cache or mirror keeps the file; refuses to lead out of ``folder``."""
        relative = PurePosixPath(self.owner_repo, self.path)
        if relative.is_absolute() or ".." in relative.parts or "\\" in str(relative):
            raise DataUnavailable(f"{self.owner_repo}/{self.path} is not a path inside a cache or mirror folder.")
        return folder.joinpath(*relative.parts)


def cache_folder(root: str | Path | None = None) -> Path:
    """The folder downloads are kept in: ``root`` if given, else what the environment says. Makes nothing."""
    if root is not None:
        return Path(root).expanduser()
    if own := os.environ.get("ASGNN_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say to ignore a relative path.
    if Path(shared).is_absolute():
        return Path(shared) / "asgnn"
    try:
        return Path.home() / ".cache" / "asgnn"
    except RuntimeError as cause:
        raise DataUnavailable("There is no home folder for the cache; set ASGNN_CACHE to a folder.") from cause


def mirror_folder() -> Path | None:
    """The folder ``$ASGNN_MIRROR``, or none if the variable is not set."""
    value = os.environ.get("ASGNN_MIRROR")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise DataUnavailable(f"ASGNN_MIRROR is set to {value}, which is not a folder; correct it or unset it.")
    return folder


def fetch(source: Source, root: str | Path | None = None) -> Path:
    """The path of a file with the right hash: in the cache, else in the mirror, else downloaded and cached.

    A file of the mirror is used where it lies. A cached file with the wrong hash is passed over and replaced
    by the download; a mirror's or a downloaded one with the wrong hash is an error. Two processes may fetch
    the same file at once: whoever ends last replaces an equal file. Time: one SHA-256 of the file.

    Args:
        source: Which file.
        root: Folder to use as the cache.
    """
    cached = source.within(cache_folder(root))
    found = hash_of(cached)
    if found == source.sha256:
        return cached
    spoiled = f" (the file now at {cached} has sha256 {found} instead of {source.sha256})" if found else ""

    mirror = mirror_folder()
    if mirror is not None:
        mirrored = source.within(mirror)
        found = hash_of(mirrored)
        if found == source.sha256:
            return mirrored
        if found is not None:
            raise DataCorrupt(
                f"The mirror's file {mirrored} has sha256 {found} instead of {source.sha256}; "
                f"replace it by the one at {source.url}."
            )

    try:
        content = _download(source)
    except (OSError, http.client.HTTPException) as cause:
        reason = cause if isinstance(cause, urllib.error.HTTPError) else getattr(cause, "reason", cause)
        raise DataUnavailable(
            f"{source.path} of {source.owner_repo} is not here and could not be had from {source.url}: "
            f"{reason or type(reason).__name__}; set ASGNN_MIRROR to a folder that holds "
            f"{source.owner_repo}/{source.path}, or put the file at {cached}{spoiled}."
        ) from None  # the sentence holds the reason; sixty lines of urllib would only bury it
    write_file(cached, content, "; free some space there or set ASGNN_CACHE to another folder")
    return cached


def hash_of(path: Path) -> str | None:
    """SHA-256 of a file, none if there is no such file."""
    try:
        with _open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as cause:
        raise DataUnavailable(f"{path} cannot be read: {cause.strerror or cause}.") from cause


def _open(path: Path) -> io.BufferedReader:
    """The file to read from; a device or a pipe, which may have no end, is an OSError."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError("it is a device or a pipe and not a file")
        return path.open("rb")
    except ValueError as cause:  # a name with a zero byte, or one that the file system cannot spell
        raise OSError(str(cause)) from cause


def _download(source: Source) -> bytes:
    """The file at its address; tries again what may pass by itself, but fails at once without a network."""
    request = urllib.request.Request(source.url, headers={"User-Agent": "asgnn"})
    for wait in (*WAITS, None):
        failure: Exception
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                content: bytes = response.read(MAX_DOWNLOAD)
            found = hashlib.sha256(content).hexdigest()
            if found == source.sha256:
                return content
            # A connection that broke off early shows here, too.
            failure = DataCorrupt(
                f"What came from {source.url} has sha256 {found} instead of {source.sha256}; nothing was kept."
            )
        except (OSError, http.client.HTTPException) as cause:
            failure = cause
        if wait is None or not _may_pass(failure):
            raise failure
        time.sleep(wait)
    raise AssertionError("unreachable")


def _may_pass(cause: BaseException) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(cause, urllib.error.HTTPError):
        return cause.code == 429 or cause.code >= 500
    # No name server, no route, nobody there: waiting half a second does not mend these.
    return not isinstance(cause, urllib.error.URLError) or isinstance(cause.reason, ConnectionResetError)


def write_atomic(path: Path, content: bytes) -> None:
    """Writes all of ``content`` to ``path`` or leaves everything as it was; raises OSError.

    The bytes go to a new file in the same folder, to the disk, and then take the name in one step. What is there and
    is no file stays: to put a file in the place of a device would break it for the whole machine.
    """
    if path.exists() and not path.is_file():
        raise OSError("it is there and not a file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        # Opened by hand: tempfile would make the result readable by its owner alone.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 - one spelling for both calls into os
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_file(path: Path, content: bytes, remedy: str = "") -> None:
    """The same, in a folder that is made if need be, and with a sentence where the system refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except (OSError, ValueError) as cause:  # ValueError: a name that the file system cannot spell
        reason = getattr(cause, "strerror", None) or cause
        raise DataUnavailable(f"{path} could not be written: {reason}{remedy}.") from cause


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """A NumPy archive without pickled objects, written as any other file."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_file(path, content.getvalue())


def read_zip(path: Path, members: Iterable[str], optional: Iterable[str] = ()) -> dict[str, bytes]:
    """The named members of a zip archive, whole, in memory; all other members are left alone.

    Sizes are checked before anything is unpacked, and no member can unpack to more than it declares.
    """
    members = list(members)
    try:
        with _open(path) as file:
            content = file.read(MAX_UNPACKED + 1)
    except FileNotFoundError as cause:
        raise DataUnavailable(f"There is no file {path}.") from cause
    except OSError as cause:
        raise DataUnavailable(f"{path} cannot be read: {cause.strerror or cause}.") from cause
    if len(content) > MAX_UNPACKED:
        raise DataCorrupt(f"{path} has more than the {MAX_UNPACKED >> 20} MiB allowed.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            there = {info.filename: info for info in archive.infolist()}
            for name in members:
                if name not in there:
                    raise DataCorrupt(f"{path} holds no {name.removesuffix('.npy')}.")
            wanted = [there[name] for name in (*members, *optional) if name in there]
            size = sum(info.file_size for info in wanted)
            if size > MAX_UNPACKED:
                raise DataCorrupt(
                    f"{path} would unpack to {size >> 20} MiB, over the {MAX_UNPACKED >> 20} MiB allowed."
                )
            return {info.filename: archive.read(info) for info in wanted}
    except DataCorrupt:
        raise
    except Exception as cause:  # nothing but the content can be at fault, so whatever zipfile trips over is damage
        raise DataCorrupt(f"{path} is damaged or no zip archive: {cause}.") from cause


def read_npz(path: Path, keys: Iterable[str], optional: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """The named arrays of a NumPy archive. Never unpickles, and never makes an array larger than its bytes.

    Args:
        path: The archive.
        keys: Arrays that must be there.
        optional: Arrays that are read if they are there.
    """
    members = read_zip(path, [f"{key}.npy" for key in keys], [f"{key}.npy" for key in optional])
    arrays = {}
    for name, content in members.items():
        key = name.removesuffix(".npy")
        try:
            arrays[key] = _read_npy(io.BytesIO(content), len(content))
        except Exception as cause:  # as above: whatever NumPy trips over is damage
            raise DataCorrupt(f"The array {key} in {path} is damaged: {cause}.") from cause
    return arrays


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _read_npy(file: io.BytesIO, size: int) -> NDArray[Any]:
    # NumPy takes as much memory as the header says, so the header is held against the bytes that are there.
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"shape {shape} of {dtype} does not fit its {size - file.tell()} bytes")
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
