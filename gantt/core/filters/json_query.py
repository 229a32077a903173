# SPDX-License-Identifier: Apache-2.0
"""JsonFilter: hosts that fit the query of a hint."""

from typing import Any

from gantt import exceptions
from gantt.core.filters.base import Filter, one_or_all, only
from gantt.core.messages.request import RequestSpec
from gantt.core.nova import query as nova_query
from gantt.core.plugin import Option
from gantt.core.rules import nova_json
from gantt.core.rules.expression import Expression
from gantt.core.rules.facts import NOVA_COLUMNS
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable


class JsonFilter(Filter):
    """Hint ``query``: JSON with the operators ``= < > in <= >= not or and`` and ``$fact.key``."""

    reason = 'does not fit the query'
    public_reason = 'the hint query'
    columns = NOVA_COLUMNS
    options = (
        Option(
            'json_filter_as_nova',
            bool,
            False,
            'In queries take not within and and or for true wherever it has an argument, as '
            'Nova does',
        ),
    )
    json_filter_as_nova: bool

    def check_request(self, spec: RequestSpec) -> None:
        self._query(spec)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        try:
            query = self._query(spec)
        except exceptions.InvalidMessage:
            return only(hosts, [])
        return None if query is None else query.mask(hosts, spec)

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        return {'parts': {f'do not fit the query {_shown(spec)}': len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        return f'fits on {one_or_all(hosts, rows)} without the query {_shown(spec)}'

    def _query(self, spec: RequestSpec) -> Expression | None:
        """Return the query of a request, None where it has none.

        :raises InvalidMessage: it cannot be parsed, or costs too much
        """
        texts = spec.hints.get('query', [])
        if len(texts) > 1:
            raise nova_query.bad(f'expected one query, got {len(texts)}')
        if not texts or not texts[0]:
            return None
        return nova_json.compiled(texts[0], self.json_filter_as_nova)


def _shown(spec: RequestSpec) -> str:
    text = ' '.join(spec.hints.get('query', []))
    return text if len(text) <= 80 else text[:77] + '...'
