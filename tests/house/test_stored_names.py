# SPDX-License-Identifier: Apache-2.0
"""The names of fields that are stored: a rename in the code changes none of them.

``stored_names.txt`` has a line for each struct that is stored, by where it stands: its path from
the place of storage, the tag and the form that it has there, and the names of its fields.
"""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gantt.compute.agent import key_file
from gantt.core.claims.claim import FormerReservation
from gantt.core.messages.build import Build
from gantt.core.messages.layout import Layout
from gantt.core.records.audit_trail import AuditEntry
from gantt.core.records.decision import Answer
from gantt.core.records.decision_codec import StoredDecision
from gantt.core.records.process import MemoryUse
from gantt.core.resources.host_keys import HostKey
from gantt.db.hosts.details import StoredFacts
from gantt.scheduler.table_log import Event

GOLDEN = pathlib.Path(__file__).with_name('stored_names.txt')
HOW = """
What was stored before, and what older processes store, has the names of stored_names.txt.  A name
that goes or changes is not found there any more: keep it by msgspec.field(name=...) or rename=.
Where a field is new, with a default: GANTT_GOLDEN=write .venv/bin/pytest {file} writes the file
anew; read the difference before you commit it.
""".replace('{file}', str(pathlib.Path('tests', 'house', 'test_stored_names.py')))

#: Where it is stored -> what is stored there.
STORED: dict[str, Any] = {
    'hosts.facts': StoredFacts,
    'hosts.signing_key': HostKey,
    'requests.answer': Answer,
    'claims.layout': Layout,
    'claims.former_reservation': FormerReservation,
    'decisions.packed': StoredDecision,
    'table_logs.chunk': Event,
    'services.memory': MemoryUse,
    'audit trail': AuditEntry,
    'journal of an agent': Build,
    'key file of an agent': key_file._KeyFileContent,
}


def structs_of(place: str, tp: Any) -> Iterator[str]:
    """A line for each struct that is stored at a place; one that comes again is shown once."""
    seen: set[type] = set()
    waiting = [(place, msgspec.inspect.type_info(tp))]
    while waiting:
        path, type_ = waiting.pop(0)
        match type_:
            case msgspec.inspect.StructType():
                if type_.cls in seen:
                    continue
                seen.add(type_.cls)
                tag = '' if type_.tag is None else f' {type_.tag_field}={type_.tag}'
                form = ' as an array' if type_.array_like else ''
                names = [field.encode_name for field in type_.fields]
                # Of an array the order counts, of a map it does not.
                shown = names if type_.array_like else sorted(names)
                yield f'{path}{tag}{form}: {" ".join(shown)}'
                inner = [(f'{path}.{field.encode_name}', field.type) for field in type_.fields]
            case msgspec.inspect.UnionType():
                inner = [(path, member_type) for member_type in type_.types]
            case msgspec.inspect.DictType():
                inner = [(f'{path}{{}}', type_.value_type)]
            case msgspec.inspect.TupleType():
                inner = [
                    (f'{path}[{n}]', member_type) for n, member_type in enumerate(type_.item_types)
                ]
            case msgspec.inspect.CollectionType():
                inner = [(f'{path}[]', type_.item_type)]
            case _:
                inner = []
        waiting += inner


def lines() -> list[str]:
    return sorted(line for place, tp in STORED.items() for line in structs_of(place, tp))


def test_what_is_stored_has_the_names_that_it_had():
    names = lines()
    if os.environ.get('GANTT_GOLDEN') == 'write':
        GOLDEN.write_text('\n'.join(names) + '\n')
    stored_names = GOLDEN.read_text().splitlines()
    gone, new = sorted({*stored_names} - {*names}), sorted({*names} - {*stored_names})
    if gone or new:
        shown = [*(f'- {line}' for line in gone), *(f'+ {line}' for line in new)]
        pytest.fail('\n'.join(shown) + '\n' + HOW, pytrace=False)


class _Inner(msgspec.Struct, array_like=True):
    second: int
    first: int


class _Outer(msgspec.Struct, tag='outer', rename={'now': 'before'}):
    now: dict[str, list[_Inner | None]]
    pairs: list[tuple[int, _Inner]] = []


def test_a_field_is_shown_by_the_name_that_it_has_where_it_is_stored():
    assert list(structs_of('x', _Outer)) == [
        'x type=outer: before pairs',
        'x.pairs[][1] as an array: second first',
    ]
