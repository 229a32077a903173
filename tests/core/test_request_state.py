# SPDX-License-Identifier: Apache-2.0
"""Whether a request may go on, by the row that all schedulers share."""

from types import SimpleNamespace

import msgspec
import pytest

from gantt.core.claims.commit import Fate, RequestDraft
from gantt.core.claims.request_state import judge_request, takes_over

NOW = 1000.0
ROW = {
    'fingerprint': 'f',
    'state': 'open',
    'owner': 'me',
    'attempt': 2,
    'deadline': NOW + 5.0,
    'answer': None,
}
DRAFT = RequestDraft(id='r', fingerprint='f', owner='me', claims=[])


def judged(row=None, **draft):
    found = None if row is None else SimpleNamespace(**ROW | row)
    return judge_request(found, msgspec.structs.replace(DRAFT, **draft), NOW)


@pytest.mark.parametrize(
    ('row', 'draft', 'fate'),
    [
        (None, {}, Fate.LOST),
        ({'state': 'cancelled', 'fingerprint': 'other'}, {}, Fate.CANCELLED),
        ({'fingerprint': 'other'}, {}, Fate.REUSED),
        ({'state': 'placed', 'answer': b'x'}, {}, Fate.REPEAT),
        ({}, {'continues': True, 'attempt': 2}, None),
        ({}, {'continues': True, 'attempt': 1}, Fate.LOST),
        ({'owner': 'other'}, {'continues': True, 'attempt': 2}, Fate.LOST),
        ({'owner': 'other'}, {}, Fate.OPEN),
        ({'owner': 'other', 'deadline': NOW}, {}, Fate.OVERDUE),
        ({'owner': 'other', 'deadline': NOW}, {'takes_over': 2}, None),
        ({'owner': 'other', 'deadline': NOW}, {'takes_over': 1}, Fate.OVERDUE),
        ({}, {}, Fate.OVERDUE),
        ({}, {'takes_over': 2}, None),
        ({}, {'takes_over': 1}, None),
        ({'owner': 'other'}, {'takes_over': 2}, Fate.OPEN),
    ],
)
def test_a_request_goes_on_or_is_told_why_not(row, draft, fate):
    found = judged(row, **draft)
    assert (found if found is None else found.fate) == fate
    if fate is Fate.REPEAT:
        assert found.answer == b'x'
    if fate is Fate.OPEN:
        assert found.wait_seconds == 5.0


def test_only_an_overdue_attempt_is_replaced():
    row = SimpleNamespace(**ROW)
    assert takes_over(row, msgspec.structs.replace(DRAFT, takes_over=2))
    assert not takes_over(row, msgspec.structs.replace(DRAFT, takes_over=1))
    assert not takes_over(None, msgspec.structs.replace(DRAFT, takes_over=2))
    assert not takes_over(row, msgspec.structs.replace(DRAFT, takes_over=2, continues=True))
