# SPDX-License-Identifier: Apache-2.0
"""The ports stay small, and together they are the store."""

import pytest

from gantt.scheduler import ports

METHODS_MOST = 12
#: All of the database, and the parts of it that Placement's interface writes.
COMPOSED = {ports.Store, ports.PlacementRecords}
PORTS = [p for p in map(ports.__dict__.get, ports.__all__) if getattr(p, '_is_protocol', False)]


def methods_of(port: type) -> list[str]:
    """What a port declares itself."""
    return [name for name, of in vars(port).items() if not name.startswith('_') and callable(of)]


@pytest.mark.parametrize('port', PORTS, ids=lambda port: port.__name__)
def test_a_port_has_a_dozen_methods_at_most(port):
    assert len(methods_of(port)) <= METHODS_MOST
    assert port in COMPOSED or methods_of(port)


def test_the_store_is_all_ports_of_the_database_and_nothing_beside():
    assert [methods_of(port) for port in COMPOSED] == [[], []]
    alone = {ports.Clock, ports.Inbox, ports.Recorder, ports.Replies, ports.Zones}
    alone |= {ports.PlacementStore}
    assert set(ports.Store.__mro__) >= set(PORTS) - alone - COMPOSED
