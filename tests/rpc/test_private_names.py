# SPDX-License-Identifier: Apache-2.0
"""Private names of libraries are looked for at the start, all that are used."""

import importlib.metadata
import pathlib
import re

import pytest

from gantt import exceptions
from gantt.rpc.amqp import private_names

FOLDER = pathlib.Path(private_names.__file__).parent
#: Of an object of somebody else: ``driver._url``, and no attribute of our own or of a module.
USED = re.compile(r'\b(?!self\b|cls\b)[a-z]\w*\._(?!_)(\w+)')
#: Modules of oslo.messaging, and what the standard library has.
NO_NAMES = {'drivers', 'utils'}


def test_the_libraries_that_are_installed_have_them():
    private_names.check()


def test_all_that_are_used_are_looked_for():
    known = {n for of in private_names.NAMES.values() for names in of.values() for n in names}
    known |= {path.partition(':')[2] for of in private_names.NAMES.values() for path in of}
    used = {}
    for path in FOLDER.glob('*.py'):
        for line in path.read_text().splitlines():
            for name in USED.findall(line.partition('#')[0]):
                used.setdefault(f'_{name}', path.name)
    missing = {name: path for name, path in used.items() if name not in known}
    assert {n: p for n, p in missing.items() if n[1:] not in NO_NAMES} == {}


def test_one_that_has_moved_is_named_with_its_library_and_version(monkeypatch):
    moved = {'kombu': {'kombu.connection:Connection': ('_connection', '_went_elsewhere')}}
    monkeypatch.setattr(private_names, 'NAMES', moved)
    with pytest.raises(exceptions.Misconfigured) as error:
        private_names.check.__wrapped__()
    assert str(error.value) == (
        f'kombu: {importlib.metadata.version("kombu")} is installed, which has no '
        'kombu.connection:Connection._went_elsewhere. Install a release that requirements.txt of '
        'Gantt names'
    )


def test_a_class_that_is_gone_is_named(monkeypatch):
    gone = {'amqp': {'amqp.transport:NoTransport': ('_read_buffer',)}}
    monkeypatch.setattr(private_names, 'NAMES', gone)
    with pytest.raises(exceptions.Misconfigured, match='which has no amqp.transport:NoTransport'):
        private_names.check.__wrapped__()
