# SPDX-License-Identifier: Apache-2.0
"""Handler of allocation candidates, found by search."""

from typing import Any

from gantt.core.candidates import find
from gantt.core.candidates.query import CandidatesQuery
from gantt.core.candidates.table import ProviderTable
from gantt.insights.candidates import ProviderTableReader
from gantt.placement_api.http import candidates_query
from gantt.placement_api.http.call import Call, PlacementAnswer
from gantt.placement_api.http.candidates_body import CandidatesBody
from gantt.placement_api.http.errors import PlacementError

#: The header that requests more than Placement returns: ``scores``, ``reasons``, or both.
EXTRAS_HEADER = 'Gantt-Candidates-Extras'
SCORES, REASONS = 'scores', 'reasons'


class CandidatesHandler:
    """A handler with the providers that its process follows."""

    def __init__(self, candidates: ProviderTableReader) -> None:
        self._candidates = candidates
        self._body = CandidatesBody()

    def list(self, call: Call) -> PlacementAnswer:
        """List the allocation candidates of a query."""
        query = candidates_query.parse(call)
        extras = _extras(call.header(EXTRAS_HEADER))
        self._check_names(query)

        def answering(table: ProviderTable, found: find.CandidatesFound) -> bytes:
            more: dict[str, Any] = {}
            if SCORES in extras:
                more['scores'] = [round(score, 6) for score in found.scores]
            if REASONS in extras:
                more['reasons'] = find.why_few_candidates(table, query)
            return self._body.make(table, query, found, call.version, more)

        return PlacementAnswer(body=self._candidates.answer(query, answering))

    def _check_names(self, query: CandidatesQuery) -> None:
        """Check the names of resource classes and traits in a query.

        :raises PlacementError: one of them is not known
        """
        roots = query.root_required | query.root_forbidden
        classes = [name for group in query.groups for name in group.resources]
        traits = sorted(roots.union(*(group.traits for group in query.groups)))
        no_classes, no_traits = self._candidates.unknown_names(classes, traits)
        for name in no_traits:
            if name in roots:
                raise PlacementError(400, f'No such trait(s): {name}.')
        for name in no_classes:
            raise PlacementError(
                400,
                f'Invalid resource class in resources parameter: No such resource class {name}.',
            )
        for name in no_traits:
            raise PlacementError(400, f'No such trait(s): {name}.')


def _extras(value: str | None) -> set[str]:
    """Parse the header of extras.

    :raises PlacementError: it names something else
    """
    extras = {name.strip() for name in (value or '').split(',')} - {''}
    if extras - {SCORES, REASONS}:
        raise PlacementError(
            400, f'{EXTRAS_HEADER}: expected "{SCORES}", "{REASONS}" or both; got: {value}'
        )
    return extras
