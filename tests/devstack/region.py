# SPDX-License-Identifier: Apache-2.0
"""Keystone, Nova and Placement of the machine of this test: those of the tests, with one catalog.

    python -m tests.devstack.region PORT PREFIX PASSWORD...

It answers until it is killed.  Nova has one compute, ``cmp-1``.
"""

import sys

from tests.http.identity import Keystone, endpoints
from tests.nova_source.openstack import OpenStack


class Region(OpenStack):
    """Nova and Placement that know the tokens of a keystone."""

    def __init__(self, keystone: Keystone) -> None:
        super().__init__()
        self._tokens = keystone.tokens.keys()  # type: ignore[assignment]
        self.host('cmp-1')
        keystone.catalog += [
            endpoints('compute', f'{self.url}/compute/v2.1'),
            endpoints('placement', f'{self.url}/placement'),
        ]


if __name__ == '__main__':
    Region(Keystone(int(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:])))
