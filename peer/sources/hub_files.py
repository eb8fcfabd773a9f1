"""List and read the files of one repository of the Hugging Face hub at one commit, by exact name, without running code.

An untrusted manifest may name a repository. Its files are fetched without credentials, so that a private one stays
private even if the volunteer's home holds a token. The volunteer's own choice is fetched with the volunteer's login.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

from dht.ground.errors import LocalFault, UsageFault
from dht.ground.fields import clean_text
from dht.ground.quantities import bytes_text
from dht.ground.regular_files import open_regular
from peer.optional_libraries import needing
from peer.sources.web_request import BROKEN, CHUNK_BYTES, to_same_scheme, web_answer

Kind = Literal["dataset", "model"]

MAX_FILES: Final = 200_000
"""Maximum number of files in a repository. The largest published data sets have tens of thousands of files."""
LIST_SECONDS: Final = 60.0
"""Time limit for the list of files."""

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_REPOSITORY: Final = re.compile(f"{_NAME}/{_NAME}")
_REVISION: Final = re.compile(_NAME)
_PREFIXES: Final = {"dataset": "datasets/", "model": ""}


def is_offline() -> bool:
    """Return whether the user chose the library's offline mode: its cache only, and no network."""
    return os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")


@dataclass(frozen=True, slots=True)
class HubRepository:
    """The contents of a repository at one commit.

    Attributes:
        where: name of the repository in messages.
        paths: paths of its files, sorted.
        is_own: whether the volunteer named it, so that its files are fetched with the volunteer's login.
        folder: folder of its files in the library's cache, or None if they are on the hub.
        sizes: bytes of its files, where the sizes were requested.
    """

    kind: Kind
    name: str
    commit: str
    where: str
    paths: tuple[str, ...]
    is_own: bool
    folder: Path | None = None
    sizes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def size(self, path: str) -> int:
        """Return the number of bytes of a file.

        Raises:
            UsageFault, LocalFault: the file cannot be obtained.
        """
        if self.folder is not None:
            with self._failing(path):
                return (self.folder / path).stat().st_size
        with self._failing(path), self._answer(path, "bytes=0-0") as answer:
            told = re.fullmatch(r"bytes 0-0/(\d{1,18})", answer.headers.get("Content-Range") or "")
            if told is None:
                told = re.fullmatch(r"(\d{1,18})", answer.headers.get("Content-Length") or "")
            if told is None:
                raise ValueError("the server reports no length")
            return int(told[1])

    def read(self, path: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from `start` to `stop`, or to its end.

        Raises:
            UsageFault, LocalFault: the file cannot be obtained.
        """
        return b"".join(self.chunks(path, start, stop))

    def chunks(self, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """Yield the same bytes in pieces; without `stop`, to the end of the file."""
        missing = (1 << 62) if stop is None else stop - start
        if missing <= 0:
            return
        if self.folder is not None:
            with self._failing(path), open_regular(self.folder / path) as file:
                file.seek(start)
                while missing and (chunk := file.read(min(CHUNK_BYTES, missing))):
                    missing -= len(chunk)
                    yield chunk
            return
        wanted = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        with self._failing(path), self._answer(path, wanted if start or stop else None) as answer:
            if start and answer.status != 206:
                raise ValueError("the server sends no ranges of bytes")
            for chunk in answer.chunks(missing):
                missing -= len(chunk)
                yield chunk
            length = answer.headers.get("Content-Length")
            if stop is None and length is not None and length != str((1 << 62) - missing):
                raise ValueError("the transfer ended early")

    @contextlib.contextmanager
    def _answer(self, path: str, wanted: str | None) -> Iterator[Any]:
        from huggingface_hub import constants

        url = f"{constants.ENDPOINT}/{_PREFIXES[self.kind]}{self.name}/resolve/{self.commit}/{quote(path)}"
        headers = {"Accept-Encoding": "identity", **({} if wanted is None else {"Range": wanted})}
        # The endpoint is the volunteer's choice (HF_ENDPOINT), even if the manifest named the repository.
        with web_answer(
            url, redirects=to_same_scheme, headers=headers, secret_headers=_login(self.is_own), is_own=True
        ) as answer:
            yield answer

    @contextlib.contextmanager
    def _failing(self, path: str) -> Iterator[None]:
        try:
            yield
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise closed(self.where, self.kind, is_own=self.is_own) from error
            raise unavailable(f"{self.where}: {path}", f"status {error.code}") from error
        except BROKEN as error:
            raise unavailable(f"{self.where}: {path}", str(getattr(error, "reason", None) or error)) from error


def _login(is_own: bool) -> dict[str, str]:
    if not is_own:
        return {}
    from huggingface_hub import get_token

    token = get_token()
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def hub_repository(
    kind: Kind, name: str, revision: str, where: str, *, is_own: bool, with_sizes: bool = False
) -> HubRepository:
    """List the files of ``ORG/NAME`` at a branch, tag or commit.

    Args:
        where: name of the repository in messages.
        is_own: whether the volunteer named it. Only then is the volunteer's login used, and without a network the
            library's cache, which may hold private files.

    Raises:
        UsageFault: the repository does not exist or is private, or the library is missing.
        LocalFault: the hub cannot be reached.
    """
    if not _REPOSITORY.fullmatch(name) or not _REVISION.fullmatch(revision):
        raise UsageFault(f"{where} is not a repository of the hub; expected ORG/NAME and a branch, tag or commit")
    with needing(f"reading {where}", "huggingface_hub", "hf"):
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    if is_offline():
        return _cached(kind, name, revision, where, is_own=is_own)
    try:
        info: Any = HfApi(token=None if is_own else False).repo_info(
            name, revision=revision, repo_type=kind, timeout=LIST_SECONDS, files_metadata=with_sizes
        )
    except (GatedRepoError, RepositoryNotFoundError) as error:
        raise closed(where, kind, is_own=is_own) from error
    except Exception as error:  # Exception classes of the hub, HTTP and the system.
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, HfHubHTTPError) and status in (401, 403):
            raise closed(where, kind, is_own=is_own) from error
        if isinstance(error, HfHubHTTPError) and status == 404:
            raise UsageFault(str(unavailable(where, str(error)))) from error
        raise unavailable(where, str(error)) from error
    sizes = {str(file.rfilename): file.size or 0 for file in info.siblings or ()}
    if not re.fullmatch("[0-9a-f]{40,64}", str(info.sha)) or not _REPOSITORY.fullmatch(str(info.id)):
        raise unavailable(where, "the hub reports no commit")
    return HubRepository(kind, info.id, info.sha, where, _checked(list(sizes), where), is_own, sizes=sizes)


def _cached(kind: Kind, name: str, revision: str, where: str, *, is_own: bool) -> HubRepository:
    if not is_own:
        raise LocalFault(
            f"the run refers to {where}, but HF_HUB_OFFLINE forbids the network; expected the hub, because your cache "
            "may contain private files; unset HF_HUB_OFFLINE, or choose the copy in your cache yourself with "
            f"--data {where}"
        )
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(name, repo_type=kind, revision=revision, local_files_only=True))
    except Exception as error:  # Exception classes of the library and the system.
        raise unavailable(where, str(error)) from error
    home = folder.parent.parent.resolve()
    files = [path for path in folder.rglob("*") if path.is_file() and path.resolve().is_relative_to(home)]
    names = [path.relative_to(folder).as_posix() for path in files]
    return HubRepository(kind, name, folder.name, where, _checked(names, where), is_own, folder)


def _checked(paths: Sequence[str], where: str) -> tuple[str, ...]:
    """Check that no file name leads outside the repository, and return the names without hidden files."""
    if len(paths) > MAX_FILES:
        raise UsageFault(f"{where} has {len(paths)} files; expected at most {MAX_FILES}")
    for path in paths:
        parts = path.split("/")
        if not path.isprintable() or "\\" in path or len(path) > 1000 or "" in parts or ".." in parts or "." in parts:
            raise UsageFault(f"{where} has a file named {clean_text(path, 80)!a}; expected names inside the repository")
    return tuple(sorted(path for path in paths if not any(part.startswith((".", "__")) for part in path.split("/"))))


def closed(where: str, kind: Kind, *, is_own: bool) -> UsageFault:
    """Return the error for a repository that the hub does not show."""
    if is_own:
        return UsageFault(
            f"{where} is closed to you, or does not exist; expected a repository of the hub that you may read; check "
            "the name, accept its terms on its page, and log in with `hf auth login`"
        )
    own = {
        "dataset": f"give --data {where} yourself (your login is then used)",
        "model": "download it yourself (`hf download`) and give --base DIR",
    }
    return UsageFault(
        f"{where} is closed (gated or private), or does not exist; expected a public repository, because the "
        f"repository of a run is fetched without your login; if you may read it, {own[kind]}"
    )


def unavailable(where: str, reason: str) -> LocalFault:
    """Return the error for a repository or file that cannot be obtained now."""
    text = clean_text(" ".join(reason.split()), 200) or "no answer"
    return LocalFault(
        f"{where} cannot be read ({text}); expected a repository on the hub, or in the library's cache with "
        "HF_HUB_OFFLINE=1; check its name and the network"
    )


def hub_folder(
    name: str,
    revision: str,
    patterns: Sequence[str],
    *,
    is_own: bool,
    most_bytes: int | None = None,
) -> Path:
    """Return the cache folder of a model with the files that match a pattern, after fetching missing ones.

    Cached files are used for any manifest that names the model, so the caller checks their digest.

    Args:
        is_own: see `hub_repository`.
        most_bytes: limit on the total size of these files in bytes, or None for no limit.

    Raises:
        UsageFault: the model is private, or larger than `most_bytes`.
        LocalFault: neither cache nor hub has the model.
    """
    with needing("a model of the hub", "huggingface_hub", "hf"):
        from huggingface_hub import snapshot_download
    where, commit = f"{name}@{revision}", revision
    try:
        if not is_offline():
            repository = hub_repository("model", name, revision, where, is_own=is_own, with_sizes=True)
            commit = repository.commit
            wanted = [path for path in repository.paths if any(fnmatch.fnmatch(path, one) for one in patterns)]
            num_bytes = sum(repository.sizes.get(path, 0) for path in wanted)
            if most_bytes is not None and num_bytes > most_bytes:
                raise UsageFault(
                    f"{where} has {bytes_text(num_bytes)} of weights on the hub; expected at most "
                    f"{bytes_text(most_bytes)}, the size in the run's manifest; tell the run's owner"
                )
        # Fetched at the commit whose sizes were read: a tag may move meanwhile.
        folder = Path(
            snapshot_download(
                name,
                revision=commit,
                allow_patterns=list(patterns),
                token=None if is_own else False,
                local_files_only=is_offline(),
            )
        )
        if commit != revision:
            _keep_name(folder, revision)
        return folder
    except Exception as error:  # Exception classes of the hub, HTTP and the system.
        with contextlib.suppress(Exception):
            # Some versions of the library do not use their cache when the hub is unreachable.
            return Path(snapshot_download(name, revision=revision, local_files_only=True))
        if isinstance(error, LocalFault):
            raise
        raise unavailable(where, str(error)) from error


def _keep_name(folder: Path, revision: str) -> None:
    """Record a tag's commit in the library's cache, as the library does, for lookups without a network."""
    names = folder.parent.parent / "refs"
    with contextlib.suppress(OSError):  # The next start asks the hub again.
        names.mkdir(exist_ok=True)
        (names / revision).write_text(folder.name, encoding="ascii")
