# SPDX-License-Identifier: Apache-2.0
"""HypervisorVersionFilter: the hint ``min_hypervisor_version`` is respected."""

from gantt.plugin_api import InvalidMessage, PerHostFilter


class HypervisorVersionFilter(PerHostFilter):
    """Runs a hypervisor of at least the version that the hint names, e.g. 7002000."""

    reason = 'hypervisor older than {spec.hints[min_hypervisor_version][0]}'

    def check_request(self, spec):
        for text in spec.hints.get('min_hypervisor_version', ()):
            if not text.isdecimal():
                raise InvalidMessage(
                    field='request.spec.hints.min_hypervisor_version',
                    problem=f'expected a number such as 7002000, got {text[:80]!r}',
                )

    def concerns(self, spec):
        return bool(spec.hints.get('min_hypervisor_version'))

    def mask(self, hosts, spec):
        if not self.concerns(spec):
            return None  # nothing asked for: every host passes
        return super().mask(hosts, spec)

    def host_passes(self, host, spec):
        return host.hypervisor.version >= int(spec.hints['min_hypervisor_version'][0])
