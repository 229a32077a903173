# SPDX-License-Identifier: Apache-2.0
"""Comparisons of shadow mode, kept by every store."""

import msgspec

from gantt.core.records.shadow import DIFFERING_VERDICTS, ComparedChoice, ShadowVerdict
from tests.builders import new_uuid
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS


def compared(verdict: ShadowVerdict = ShadowVerdict.SAME, **fields) -> ComparedChoice:
    return ComparedChoice(
        **{
            'id': new_uuid(),
            'request_id': new_uuid(),
            'origin': 'req-1',
            'consumer': new_uuid(),
            'purpose': 'create',
            'verdict': verdict,
            'gantt_host': 'cmp-1',
            'nova_host': None,
            'reason': 'größer',
        }
        | fields
    )


def ids(shadows):
    return [shadow.id for shadow in shadows]


def test_they_are_kept_as_said_once_and_newest_first(store):
    shadows = [
        compared(verdict)
        for verdict in (ShadowVerdict.SAME, ShadowVerdict.REMOVED, ShadowVerdict.NOT_OBSERVED)
    ]
    for shadow in shadows:
        store.shadows.save_shadows([shadow], 10)
    store.shadows.save_shadows([compared(ShadowVerdict.OTHER, id=shadows[0].id)], 10)
    listed = store.shadows.list_shadows(None, 10)
    assert ids(listed) == ids(reversed(shadows))
    assert listed[0].created_at > 0
    assert listed[2] == msgspec.structs.replace(shadows[0], created_at=listed[2].created_at)
    assert ids(store.shadows.list_shadows(list(DIFFERING_VERDICTS), 10)) == [shadows[1].id]
    assert ids(store.shadows.list_shadows(None, 1)) == [shadows[2].id]
    assert store.shadows.count_shadows() == {
        ShadowVerdict.SAME: 1,
        ShadowVerdict.REMOVED: 1,
        ShadowVerdict.NOT_OBSERVED: 1,
    }


def test_only_the_newest_are_kept(store):
    shadows = [compared() for _ in range(5)]
    for shadow in shadows:
        store.shadows.save_shadows([shadow], 3)
    assert ids(store.shadows.list_shadows(None, 10)) == ids(reversed(shadows[2:]))
    store.shadows.save_shadows([], 0)
    assert store.shadows.list_shadows(None, 10) == []
