# SPDX-License-Identifier: Apache-2.0
"""Key of a host, in a file that only its owner can read.

The file is JSON: the private key, and the keys before it with their signatures over the next
one, by which a scheduler that knows an older key (a database put back to a state before the
rotation) follows to the present one.
"""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Generator

import msgspec

from gantt import exceptions
from gantt.client.signing import Signer
from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import KEY_BYTES, OLDER_KEYS_MAX, SIGNATURE_BYTES
from gantt.ed25519 import PrivateKey

FILE_BYTES_MAX = 65_536


class _OlderKey(msgspec.Struct):
    public: str
    signature: str


class _KeyFileContent(msgspec.Struct):
    private: str
    older: list[_OlderKey] = []


class _UnusableKeyFile(Exception):
    """An error of a file that holds no valid key."""


def load_or_create(path: pathlib.Path, option: str = '[compute] key_file') -> Signer:
    """Return the key in a file, which is created where there is none.

    :param option: option that names the file, for the error
    :raises Misconfigured: the file cannot be used, or others may read it
    """
    with _usable(path, option):
        with contextlib.suppress(FileExistsError):
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                key = PrivateKey()
                _write(path, _KeyFileContent(private=host_keys.key_text(key.raw)), anew=True)
        return _signer(_read(path))


def rotate(path: pathlib.Path) -> str:
    """Replace the key by a new key, signed by the old one; return the new key's fingerprint.

    An agent that runs goes on with the old one until it is restarted.

    :raises Misconfigured: there is no file, or it cannot be used
    """
    with _usable(path, '[compute] key_file'):
        content = _read(path)
        old_key, new_key = _private(content), PrivateKey()
        passed_on = _OlderKey(
            public=host_keys.key_text(old_key.public),
            signature=host_keys.key_text(old_key.sign(host_keys.successor_bytes(new_key.public))),
        )
        older = [passed_on, *content.older][:OLDER_KEYS_MAX]
        new_content = _KeyFileContent(private=host_keys.key_text(new_key.raw), older=older)
        _write(path, new_content, anew=False)
        return _signer(new_content).fingerprint


def _read(path: pathlib.Path) -> _KeyFileContent:
    with path.open('rb') as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            raise _UnusableKeyFile('others than its owner may read or write it (chmod 600)')
        body = file.read(FILE_BYTES_MAX)
    try:
        return msgspec.json.decode(body, type=_KeyFileContent)
    except (msgspec.DecodeError, UnicodeError) as e:
        raise _UnusableKeyFile(f'it is no key file: {e}') from None


def _private(content: _KeyFileContent) -> PrivateKey:
    raw = host_keys.key_bytes(content.private, KEY_BYTES)
    if raw is None:
        raise _UnusableKeyFile('its private key does not have 32 bytes')
    return PrivateKey(raw)


def _signer(content: _KeyFileContent) -> Signer:
    older = []
    for older_key in content.older[:OLDER_KEYS_MAX]:
        key = host_keys.key_bytes(older_key.public, KEY_BYTES)
        signature = host_keys.key_bytes(older_key.signature, SIGNATURE_BYTES)
        if key is None or signature is None:
            raise _UnusableKeyFile('one of its older keys cannot be read')
        older.append((key, signature))
    return Signer(_private(content), tuple(older))


def _write(path: pathlib.Path, content: _KeyFileContent, *, anew: bool) -> None:
    """Write the file atomically, and private before it has any content.

    :raises FileExistsError: with ``anew``, another process was faster
    """
    draft = path.with_name(f'.{path.name}.{secrets.token_hex(8)}')
    opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(opened, 'wb') as file:
            file.write(msgspec.json.encode(content))
            file.flush()
            os.fsync(file.fileno())
        if anew:
            os.link(draft, path)
        else:
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _usable(path: pathlib.Path, option: str) -> Generator[None]:
    """Turn errors of a file into one that names its option."""
    try:
        yield
    except (OSError, _UnusableKeyFile) as e:
        problem = getattr(e, 'strerror', None) or str(e)
        raise exceptions.Misconfigured(
            option=option,
            problem=f'{path} cannot be used: {problem}',
            fix='Name a file on a disk that survives a restart, for this process alone',
        ) from None
