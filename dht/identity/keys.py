"""A peer's identity: an Ed25519 key, the PeerId that embeds it, signatures, and run ids that certify themselves.

The key file is the libp2p protobuf ``PrivateKey{Type: Ed25519, Data: seed || public key}``, so the libp2p daemon reads
the same file. A PeerId is base58 of ``00 24 08 01 12 20`` and the public key (libp2p peer id specification, identity
multihash). Therefore anyone can verify a signature from the PeerId alone. Signatures: RFC 8032.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from dht.ground.errors import UsageFault, reading, unwritable
from dht.ground.host import PeerId
from dht.ground.regular_files import read_private, write_new

PUBLIC_KEY_BYTES = 32
SIGNATURE_BYTES = 64
KEY_FILE_BYTES = 68
FINGERPRINT_LENGTH = 20
"""Characters of base32: 100 bits, out of reach of a search for a second key with the same fingerprint."""
PEER_ID_LENGTH = 52
"""Characters of base58 of 38 bytes that begin like those of an Ed25519 PeerId."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)
"""Errors of file systems without hard links."""

_KEY_FILE_PREFIX = bytes.fromhex("08011240")
_PEER_ID_PREFIX = bytes.fromhex("002408011220")
_BEGINNING = "12D3Koo"
"""First characters of all Ed25519 PeerIds, since they begin with the same bytes."""
MAX_CONVERTED = 4096
"""PeerIds whose converted forms are cached. A conversion takes 20 to 60 microseconds, and each check of this peer's
connections needs three for each connection, including strangers'."""
_MAX_PEER_ID_LENGTH = 64  # base58 decoding is quadratic, so longer text is not tried
_NAME = re.compile(r"[a-z0-9-]{1,40}")
_FINGERPRINT = re.compile(rf"[a-z2-7]{{{FINGERPRINT_LENGTH}}}")


@dataclass(frozen=True, slots=True)
class Identity:
    """The key pair of one peer or of a run's owner. Its `repr` shows only the PeerId."""

    peer_id: PeerId
    public_key: bytes = field(repr=False)
    """32 bytes."""
    _private_key: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls) -> Identity:
        return cls._from_private_key(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity of a 32-byte secret (RFC 8032, section 5.1.5): equal seeds give equal keys. For
        simulations.
        """
        return cls._from_private_key(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def from_bytes(cls, content: bytes) -> Identity:
        """Return the identity that `to_bytes` encoded.

        Raises:
            ValueError: not a 68-byte Ed25519 libp2p key, or its two halves do not belong together.
        """
        if len(content) != KEY_FILE_BYTES or not content.startswith(_KEY_FILE_PREFIX):
            raise ValueError(f"{len(content)} bytes that are not a libp2p Ed25519 key; expected {KEY_FILE_BYTES} bytes")
        seed, public_key = content[4 : 4 + PUBLIC_KEY_BYTES], content[4 + PUBLIC_KEY_BYTES :]
        identity = cls._from_private_key(Ed25519PrivateKey.from_private_bytes(seed))
        if identity.public_key != public_key:
            raise ValueError("the public half of the key does not belong to its private half")
        return identity

    @classmethod
    def load(cls, path: str | Path) -> Identity:
        """Read a key file.

        Raises:
            UsageFault: the file is missing, unreadable, garbled, or open to other users of the machine.
        """
        path = Path(path)
        what, exfat = f"the key file {path}", " (if the disk stores no modes, like exFAT: --identity on another disk)"
        with reading(what, "a key file made by `peer init` or by an earlier join; give another path with --identity"):
            content = read_private(path, KEY_FILE_BYTES, what, exfat)
        try:
            return cls.from_bytes(content)
        except ValueError as error:
            raise UsageFault(
                f"the key file {path} is damaged: {error}; restore it from a copy; without a copy, a peer that "
                "removes the file becomes a new peer, but an owner without this key loses the run"
            ) from error

    @classmethod
    def load_or_create(cls, path: str | Path) -> Identity:
        """Read the key file, or create a new identity and store it there with mode 0600.

        The file is written atomically. If two processes create it at once, both return the same identity.

        Raises:
            UsageFault: as from `load`.
            LocalFault: the folder cannot be written.
        """
        path = Path(path)
        if path.exists():
            return cls.load(path)
        identity = cls.generate()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        is_new_folder = not path.parent.exists()
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_new(draft, identity.to_bytes())
            _put_in_place(draft, path, identity.to_bytes())
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                path.unlink()
                raise UsageFault(
                    f"the key file {path} would be readable by other users of this machine, because the disk stores "
                    "no file modes (exFAT); expected a disk that stores them; give another path with --identity"
                )
        except FileExistsError:
            return cls.load(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
                if is_new_folder:
                    path.parent.rmdir()
            raise unwritable(path, error) from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
        return identity

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte Ed25519 signature of `message`."""
        return self._private_key.sign(message)

    def to_bytes(self) -> bytes:
        """Return the 68-byte content of the libp2p key file. Secret."""
        seed = self._private_key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        return _KEY_FILE_PREFIX + seed + self.public_key

    @classmethod
    def _from_private_key(cls, private_key: Ed25519PrivateKey) -> Identity:
        public_key = private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return cls(peer_id_of(public_key), public_key, private_key)


def _put_in_place(draft: Path, path: Path, content: bytes) -> None:
    """Move a complete file to its final name. Raises FileExistsError if another process was faster, otherwise
    OSError.
    """
    try:
        # Creating a link fails if the name exists, whereas a rename would replace another process's key.
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # exFAT, and many FUSE file systems: write this short file at once, under a new name.
        write_new(path, content)


def peer_id_of(public_key: bytes) -> PeerId:
    """Return the PeerId of a 32-byte Ed25519 public key.

    Raises:
        ValueError: not 32 bytes.
    """
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise ValueError(f"a public key of {len(public_key)} bytes; expected {PUBLIC_KEY_BYTES}")
    return PeerId(base58.b58encode(_PEER_ID_PREFIX + public_key).decode("ascii"))


@lru_cache(MAX_CONVERTED)
def public_key_of(peer_id: PeerId | str) -> bytes:
    """Return the 32-byte public key inside an Ed25519 PeerId.

    Raises:
        ValueError: not the one canonical text of an Ed25519 PeerId (RSA ids, ``Qm...``, hide their key in a hash).
    """
    expected = f"expected a libp2p Ed25519 id such as 12D3KooW... ({PEER_ID_LENGTH} characters)"
    if not 0 < len(peer_id) <= _MAX_PEER_ID_LENGTH or not peer_id.isascii():
        raise ValueError(f"a PeerId of {len(peer_id)} characters; {expected}")
    if len(peer_id) < PEER_ID_LENGTH and peer_id.startswith(_BEGINNING):
        raise ValueError(f"{peer_id!r} is cut off after {len(peer_id)} characters; {expected}")
    try:
        content = base58.b58decode(peer_id)
    except ValueError as error:
        raise ValueError(f"{peer_id!r} is not base58; {expected}") from error
    public_key = content[len(_PEER_ID_PREFIX) :]
    if not content.startswith(_PEER_ID_PREFIX) or len(public_key) != PUBLIC_KEY_BYTES:
        raise ValueError(f"{peer_id!r} contains no Ed25519 key; {expected}")
    if peer_id_of(public_key) != peer_id:
        raise ValueError(f"{peer_id!r} is not in canonical form; {expected}")
    return public_key


@lru_cache(MAX_CONVERTED)
def peer_id_bytes(peer_id: PeerId) -> bytes:
    content: bytes = base58.b58decode(peer_id)
    return content


@lru_cache(MAX_CONVERTED)
def peer_id_of_bytes(content: bytes) -> PeerId:
    """Return the PeerId that `peer_id_bytes` converted.

    Raises:
        ValueError: not an Ed25519 PeerId.
    """
    text: str = base58.b58encode(content[:_MAX_PEER_ID_LENGTH]).decode("ascii")
    public_key_of(text)
    return PeerId(text)


def verify(peer_id: PeerId | str, message: bytes, signature: bytes) -> bool:
    """Return whether the key inside `peer_id` made `signature` over `message`. Never raises on bad input."""
    try:
        public_key = public_key_of(peer_id)
    except ValueError:
        return False
    return verify_key(public_key, message, signature)


def verify_key(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether `public_key` (32 bytes) made `signature` over `message`. Never raises on bad input."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(public_key: bytes) -> str:
    """Return the first 20 characters of lower-case base32 of SHA-256 of the public key."""
    return base64.b32encode(hashlib.sha256(public_key).digest()).decode("ascii").lower()[:FINGERPRINT_LENGTH]


def make_run_id(name: str, public_key: bytes) -> str:
    """Return ``<name>.<fingerprint of the owner's key>``, from which anyone can verify the run's owner.

    Raises:
        UsageFault: the name has characters besides a-z, 0-9 and ``-``, or is not 1 to 40 long.
    """
    if not _NAME.fullmatch(name):
        raise UsageFault(
            f"the run name {name!r} cannot be used; expected 1 to 40 of a-z, 0-9 and '-'; choose another name"
        )
    return f"{name}.{fingerprint(public_key)}"


def split_run_id(run_id: str) -> tuple[str, str]:
    """Return (name, fingerprint) of a run id.

    Raises:
        UsageFault: the text is not a run id.
    """
    name, _, mark = run_id.partition(".")
    if not _NAME.fullmatch(name) or not _FINGERPRINT.fullmatch(mark):
        raise UsageFault(
            f"{run_id[:80]!r} is not a run id; expected NAME.FINGERPRINT such as tinybytes.abcdefghij234567abcd; copy "
            "the complete id from the run's page or from `peer init`"
        )
    return name, mark
