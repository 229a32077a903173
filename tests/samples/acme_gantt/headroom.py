# SPDX-License-Identifier: Apache-2.0
"""HeadroomFilter: some memory stays free on every host."""

from gantt.plugin_api import Filter, Option, format_amount


class HeadroomFilter(Filter):
    """Leaves ``headroom_mb`` of memory free beyond what is asked for."""

    reason = 'too little MEMORY_MB left over (need {need}, best has {best})'
    columns = ('free',)
    options = (
        Option('headroom_mb', int, 1024, 'MiB of memory that stay free on every host', min=0),
    )
    headroom_mb: int

    def mask(self, hosts, spec):
        code = hosts.class_code('MEMORY_MB')
        if code is None:
            return None  # no host has any; ResourcesFilter says so
        return hosts.free_of(code) >= self._need(spec)

    def detail(self, hosts, spec, rows):
        best = int(hosts.free_of(hosts.class_code('MEMORY_MB')).take(rows).max())
        return {
            'need': format_amount('MEMORY_MB', self._need(spec)),
            'best': format_amount('MEMORY_MB', best),
        }

    def _need(self, spec):
        return spec.resources.get('MEMORY_MB', 0) + self.headroom_mb
