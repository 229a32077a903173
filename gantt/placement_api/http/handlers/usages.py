# SPDX-License-Identifier: Apache-2.0
"""Handler of the total usage of a project, or of a user in it."""

from collections import Counter
from typing import Any

from gantt.placement_api.http import schemas
from gantt.placement_api.http.call import Call, PlacementAnswer

#: The version from which on types of consumers are distinguished.
TYPES_SINCE = 38
#: Values instead of a type: all consumers together; only those without a known type.
ALL, UNKNOWN = 'all', 'unknown'

_TEXT_SCHEMA = {'type': 'string', 'minLength': 1, 'maxLength': 255}
_QUERY_SCHEMA = schemas.object_schema(['project_id'], project_id=_TEXT_SCHEMA, user_id=_TEXT_SCHEMA)
_TYPED_QUERY_SCHEMA = schemas.object_schema(
    ['project_id'],
    project_id=_TEXT_SCHEMA,
    user_id=_TEXT_SCHEMA,
    consumer_type={**_TEXT_SCHEMA, 'pattern': rf'{schemas.CLASS_PATTERN}|^{ALL}\Z|^{UNKNOWN}\Z'},
)


def show_usages(call: Call) -> PlacementAnswer:
    """Show usages by class; from 1.38 on also by type of consumer, with their number."""
    # Placement checks the policy before it validates the query.
    parameters = dict(call.query_pairs)
    call.check('placement:usages', parameters.get('project_id', ''))
    query = call.query(_TYPED_QUERY_SCHEMA if call.since(TYPES_SINCE) else _QUERY_SCHEMA)
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
