# SPDX-License-Identifier: Apache-2.0
"""What a project, or a user in it, has in all."""

from collections import Counter
from typing import Any

from gantt.http.placement import schemas
from gantt.http.placement.call import Call, PlacementAnswer

#: The version from which on types of consumers are told apart.
TYPES_SINCE = 38
#: In the place of a type: all together; only those of which none is known.
ALL, UNKNOWN = 'all', 'unknown'

_TEXT = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_QUERY = schemas.exactly(['project_id'], project_id=_TEXT, user_id=_TEXT)
_TYPED_QUERY = schemas.exactly(
    ['project_id'],
    project_id=_TEXT,
    user_id=_TEXT,
    consumer_type={**_TEXT, 'pattern': rf'{schemas.CLASS_PATTERN}|^{ALL}\Z|^{UNKNOWN}\Z'},
)


def show_usages(call: Call) -> PlacementAnswer:
    """By class; from 1.38 on by type, with how many consumers they are."""
    # Placement asks whether the caller may before it looks at the query.
    given = dict(call.pairs)
    call.check('placement:usages', given.get('project_id', ''))
    query = call.query(_TYPED_QUERY if call.since(TYPES_SINCE) else _QUERY)
    found = call.store.type_usages(query['project_id'], user=query.get('user_id'))
    if not call.since(TYPES_SINCE):
        total: Counter[str] = Counter()
        for one in found:
            total.update(one.resources)
        return PlacementAnswer(body={'usages': dict(total)})
    wanted = query.get('consumer_type')
    usages: dict[str, Any] = {}
    for one in found:
        if wanted in (None, ALL, one.consumer_type):
            here: Counter[str] = usages.setdefault(
                ALL if wanted == ALL else one.consumer_type, Counter()
            )
            here.update(one.resources)
            here['consumer_count'] += one.consumers
    return PlacementAnswer(body={'usages': usages})
