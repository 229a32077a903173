# SPDX-License-Identifier: Apache-2.0
"""Handler of the total usage of a project, or of a user in it."""

from collections import Counter
from typing import Any

from gantt.http.placement import schemas
from gantt.http.placement.call import Call, PlacementAnswer

#: The version from which on types of consumers are distinguished.
TYPES_SINCE = 38
#: Values instead of a type: all consumers together; only those without a known type.
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
    """Show usages by class; from 1.38 on also by type of consumer, with their number."""
    # Placement checks the policy before it validates the query.
    given = dict(call.pairs)
    call.check('placement:usages', given.get('project_id', ''))
    query = call.query(_TYPED_QUERY if call.since(TYPES_SINCE) else _QUERY)
    usages_by_type = call.stores.allocations.type_usages(
        query['project_id'], user=query.get('user_id')
    )
    if not call.since(TYPES_SINCE):
        total: Counter[str] = Counter()
        for usage in usages_by_type:
            total.update(usage.resources)
        return PlacementAnswer(body={'usages': dict(total)})
    consumer_type = query.get('consumer_type')
    usages: dict[str, Any] = {}
    for usage in usages_by_type:
        if consumer_type in (None, ALL, usage.consumer_type):
            totals: Counter[str] = usages.setdefault(
                ALL if consumer_type == ALL else usage.consumer_type, Counter()
            )
            totals.update(usage.resources)
            totals['consumer_count'] += usage.consumers
    return PlacementAnswer(body={'usages': usages})
