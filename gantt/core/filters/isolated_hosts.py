# SPDX-License-Identifier: Apache-2.0
"""IsolatedHostsFilter: some images on some hosts only, and nothing else there."""

from gantt.core.filters.base import EVERY_PURPOSE, Filter, all_but, names_of, only
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable


class IsolatedHostsFilter(Filter):
    """An image is isolated by its uuid, a host by its name; what has no image is not isolated."""

    reason = 'kept for isolated images, or the image is isolated and the host is not'
    public_reason = 'the image'
    columns = ('names',)
    fields = ('image',)
    purposes = EVERY_PURPOSE
    options = (
        Option('isolated_images', list, [], 'Uuids of images that run on isolated_hosts only'),
        Option(
            'isolated_hosts',
            list,
            [],
            'Names of hosts that are kept for isolated_images; case matters',
        ),
        Option(
            'restrict_isolated_hosts_to_isolated_images',
            bool,
            True,
            'Keep other images off isolated_hosts',
        ),
    )
    isolated_images: list[str]
    isolated_hosts: list[str]
    restrict_isolated_hosts_to_isolated_images: bool

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if self._is_isolated(spec):
            return only(hosts, self._rows(hosts))
        if self.restrict_isolated_hosts_to_isolated_images:
            return all_but(hosts, self._rows(hosts))
        return None

    def detail(
        self, hosts: HostTable, spec: RequestSpec, rows: IntArray
    ) -> dict[str, dict[str, int]]:
        why = (
            'not isolated as the image is'
            if self._is_isolated(spec)
            else 'kept for isolated images'
        )
        return {'parts': {why: len(rows)}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        names = names_of([hosts.names[row] for row in rows[:5].tolist()])
        if self._is_isolated(spec):
            return f'fits if isolated_hosts names {names}'
        return f'fits on {names} with an isolated image'

    def _is_isolated(self, spec: RequestSpec) -> bool:
        return spec.image.uuid is not None and spec.image.uuid in self.isolated_images

    def _rows(self, hosts: HostTable) -> list[int]:
        return [row for name in self.isolated_hosts for row in hosts.rows_of_host(name)]
