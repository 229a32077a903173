# SPDX-License-Identifier: Apache-2.0
"""HypervisorVersionFilter: the hint ``min_hypervisor_version`` is respected."""

from gantt.plugin_api import PerHostFilter


class HypervisorVersionFilter(PerHostFilter):
    """Runs a hypervisor of at least the version that the hint names, e.g. 7002000."""

    reason = 'hypervisor older than {spec.hints[min_hypervisor_version][0]}'

    def mask(self, hosts, spec):
        if 'min_hypervisor_version' not in spec.hints:
            return None  # nothing asked for: every host passes
        return super().mask(hosts, spec)

    def host_passes(self, host, spec):
        return host.hypervisor.version >= int(spec.hints['min_hypervisor_version'][0])
