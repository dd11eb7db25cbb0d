"""Third-party data files: read from the cache, a mirror folder or the web, and verified by their SHA-256.

The cache is ``$ASGNN_CACHE``, else ``$XDG_CACHE_HOME/asgnn``, else ``~/.cache/asgnn``, and is created on demand.
``$ASGNN_MIRROR`` is a folder with files that were downloaded before. Both are organised as ``OWNER/REPO/PATH``.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib.util
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

from asgnn.errors import ConfigError, DataCorrupt, DataUnavailable

# Repository and commit of the three collections of data files.
GNN_META_ATTACK = ("danielzuegner/gnn-meta-attack", "982d900d05f19f0bd061b8d4988310bd7baa5f91")
PRO_GNN = ("ChandlerBang/Pro-GNN", "90e11956bf8145dc2ff441fc9923bc95b535f289")
HETEROPHILOUS = ("yandex-research/heterophilous-graphs", "a431395582e929d88271309716bea4fe24ce6318")

WAITS = (0.5, 1.0)  # seconds before the second and third attempt
TIMEOUT = 10.0  # seconds
MAX_DOWNLOAD = 64 << 20  # bytes; the largest data file has under 2 MiB
MAX_UNPACKED = 512 << 20  # bytes unpacked from one archive


@dataclass(frozen=True)
class Source:
    """A file at a commit of a public repository, and its SHA-256."""

    owner_repo: str
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.owner_repo}/{self.commit}/{self.path}"

    def within(self, folder: Path) -> Path:
        """Returns the path of the file in a cache or mirror; raises if it would be outside ``folder``."""
        relative = PurePosixPath(self.owner_repo, self.path)
        if relative.is_absolute() or ".." in relative.parts or "\\" in str(relative):
            raise DataUnavailable(f"{self.owner_repo}/{self.path} is not a path inside a cache or mirror folder.")
        return folder.joinpath(*relative.parts)


def cache_folder(root: str | Path | None = None) -> Path:
    """Returns the cache folder, ``root`` or the environment's, without creating it."""
    if root is not None:
        return Path(root).expanduser()
    if own := os.environ.get("ASGNN_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    if Path(shared).is_absolute():
        return Path(shared) / "asgnn"
    try:
        return Path.home() / ".cache" / "asgnn"
    except RuntimeError as cause:
        raise DataUnavailable("There is no home folder for the cache; set ASGNN_CACHE.") from cause


def mirror_folder() -> Path | None:
    """Returns the folder ``$ASGNN_MIRROR``, or ``None`` if the variable is not set."""
    value = os.environ.get("ASGNN_MIRROR")
    if not value:
        return None
    folder = Path(value).expanduser()
    if not folder.is_dir():
        raise DataUnavailable(f"ASGNN_MIRROR is set to {value}, which is not a folder; correct it or unset it.")
    return folder


@dataclass(frozen=True)
class PackageFile:
    """A file that an installed package contains; a copy in the cache stands in where the package is missing.

    Args:
        module: The package as it is imported.
        project: The package as it is installed, also its folder in the cache.
        path: Of the file within the package.
    """

    module: str
    project: str
    path: str

    def installed(self) -> Path | None:
        """Returns the file of the installed package, without importing it; ``None`` if there is none."""
        found = importlib.util.find_spec(self.module)
        folders = [] if found is None else found.submodule_search_locations or []
        return next((file for folder in folders if (file := Path(folder) / self.path).is_file()), None)

    def within(self, folder: Path) -> Path:
        """Returns the path of the copy in a cache."""
        return folder / self.project / PurePosixPath(self.path).name


def find_packaged(source: PackageFile, root: str | Path | None = None) -> Path:
    """Returns the path of a package's file: of the installed package, else the copy in the cache."""
    copy = source.within(cache_folder(root))
    found = source.installed() or (copy if copy.is_file() else None)
    if found is None:
        raise DataUnavailable(
            f"{PurePosixPath(source.path).name} is part of {source.project}, which is not installed: run "
            f"pip install {source.project}, or copy {source.module}/{source.path} from another machine to {copy}."
        )
    return found


def fetch(source: Source, root: str | Path | None = None) -> Path:
    """Returns the path of a file with the right hash: in the cache, else in the mirror, else downloaded to the cache.

    A cached file with the wrong hash is downloaded again; a mirrored or downloaded one is an error.
    Safe to call from several processes at once. Time: one SHA-256 of the file.

    Args:
        source: The file.
        root: The cache folder.
    """
    cached = source.within(cache_folder(root))
    found = hash_of(cached)
    if found == source.sha256:
        return cached
    spoiled = f" (the file at {cached} has SHA-256 {found} instead of {source.sha256})" if found else ""

    mirror = mirror_folder()
    if mirror is not None:
        mirrored = source.within(mirror)
        found = hash_of(mirrored)
        if found == source.sha256:
            return mirrored
        if found is not None:
            raise DataCorrupt(
                f"The mirror's file {mirrored} has SHA-256 {found} instead of {source.sha256}; "
                f"replace it with {source.url}."
            )

    try:
        content = _download(source)
    except (OSError, http.client.HTTPException) as cause:
        reason = cause if isinstance(cause, urllib.error.HTTPError) else getattr(cause, "reason", cause)
        raise DataUnavailable(
            f"{source.path} of {source.owner_repo} could not be downloaded from {source.url}: "
            f"{reason or type(reason).__name__}; set ASGNN_MIRROR to a folder that contains "
            f"{source.owner_repo}/{source.path}, or put the file at {cached}{spoiled}."
        ) from None  # the message has the reason; urllib's traceback adds nothing
    write_file(cached, content, "; free some space or set ASGNN_CACHE to another folder")
    return cached


def hash_of(path: Path) -> str | None:
    """Returns the SHA-256 of a file, or ``None`` if it does not exist."""
    try:
        with _open(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as cause:
        raise DataUnavailable(f"{path} cannot be read: {cause.strerror or cause}.") from cause


def _open(path: Path) -> io.BufferedReader:
    """Opens a file for reading; raises OSError for devices and pipes, which may never end."""
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise OSError("it is a device or a pipe, not a file")
        return path.open("rb")
    except ValueError as cause:  # a name with a null byte or one that cannot be encoded
        raise OSError(str(cause)) from cause


def _download(source: Source) -> bytes:
    """Downloads a file; retries temporary errors, but fails at once without a network."""
    request = urllib.request.Request(source.url, headers={"User-Agent": "asgnn"})
    for wait in (*WAITS, None):
        failure: Exception
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                content: bytes = response.read(MAX_DOWNLOAD)
            found = hashlib.sha256(content).hexdigest()
            if found == source.sha256:
                return content
            # A truncated download ends here, too.
            failure = DataCorrupt(
                f"The download from {source.url} has SHA-256 {found} instead of {source.sha256} and was discarded."
            )
        except (OSError, http.client.HTTPException) as cause:
            failure = cause
        if wait is None or not _is_temporary(failure):
            raise failure
        time.sleep(wait)
    raise AssertionError("unreachable")


def _is_temporary(cause: BaseException) -> bool:
    """Returns whether the same request may succeed a moment later."""
    if isinstance(cause, urllib.error.HTTPError):
        return cause.code == 429 or cause.code >= 500
    # No name server, no route, connection refused: waiting does not help.
    return not isinstance(cause, urllib.error.URLError) or isinstance(cause.reason, ConnectionResetError)


def write_atomic(path: Path, content: bytes) -> None:
    """Writes ``content`` to ``path`` atomically; raises OSError.

    Writes and syncs a temporary file in the same folder, then renames it. Refuses to replace anything but a file:
    replacing a device node would break it for the whole machine.
    """
    if path.exists() and not path.is_file():
        raise OSError("it exists and is not a file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        # Not tempfile, which makes files readable by their owner only.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)  # noqa: PTH105 - one spelling for both calls into os
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def check_place(path: Path) -> None:
    """Raises if no file or folder can be made at ``path``; for use before a long computation."""
    parent = next((one for one in path.parents if one.exists()), path.parent)
    if not parent.is_dir():
        raise ConfigError(f"{path} cannot be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{path} cannot be written: there is no permission to write into {parent}.")


def write_file(path: Path, content: bytes, remedy: str = "") -> None:
    """Like :func:`write_atomic`, but creates missing folders and raises :class:`DataUnavailable`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    except (OSError, ValueError) as cause:  # ValueError: a name that cannot be encoded
        reason = getattr(cause, "strerror", None) or cause
        raise DataUnavailable(f"{path} could not be written: {reason}{remedy}.") from cause


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes a NumPy archive without pickled objects with :func:`write_file`."""
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    write_file(path, content.getvalue())


def read_zip(path: Path, members: Iterable[str], optional: Iterable[str] = ()) -> dict[str, bytes]:
    """Returns the named members of a zip archive; reads no others.

    Checks the sizes before unpacking; no member can unpack to more than it declares.
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
        raise DataCorrupt(f"{path} is larger than the limit of {MAX_UNPACKED >> 20} MiB.")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            there = {info.filename: info for info in archive.infolist()}
            for name in members:
                if name not in there:
                    raise DataCorrupt(f"{path} does not contain {name.removesuffix('.npy')}.")
            wanted = [there[name] for name in (*members, *optional) if name in there]
            size = sum(info.file_size for info in wanted)
            if size > MAX_UNPACKED:
                raise DataCorrupt(
                    f"{path} would unpack to {size >> 20} MiB, over the limit of {MAX_UNPACKED >> 20} MiB."
                )
            return {info.filename: archive.read(info) for info in wanted}
    except DataCorrupt:
        raise
    except Exception as cause:  # zipfile raises many types; the cause is always the content
        raise DataCorrupt(f"{path} is damaged or not a zip archive: {cause}.") from cause


def read_npz(path: Path, keys: Iterable[str], optional: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """Returns the named arrays of a NumPy archive; never unpickles, never allocates more than the file declares.

    Args:
        path: The archive.
        keys: Required arrays.
        optional: Arrays to read if present.
    """
    members = read_zip(path, [f"{key}.npy" for key in keys], [f"{key}.npy" for key in optional])
    arrays = {}
    for name, content in members.items():
        key = name.removesuffix(".npy")
        try:
            arrays[key] = _read_npy(io.BytesIO(content), len(content))
        except Exception as cause:  # NumPy raises many types; the cause is always the content
            raise DataCorrupt(f"The array {key} in {path} is damaged: {cause}.") from cause
    return arrays


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _read_npy(file: io.BytesIO, size: int) -> NDArray[Any]:
    # NumPy allocates what the header says, so compare the header with the bytes first.
    shape, _, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    if not dtype.hasobject and math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(f"shape {shape} of {dtype} does not match its {size - file.tell()} bytes")
    file.seek(0)
    array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return array
