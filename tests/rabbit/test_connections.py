# SPDX-License-Identifier: Apache-2.0
"""Connections that are made anew leave nothing behind."""

import gc
import time
import weakref

import pytest

from gantt import client
from gantt.rpc.amqp import publisher
from tests.rpc.bus import a_conf
from tests.rpc.facade import until

pytestmark = pytest.mark.rabbit


def test_a_connection_that_wrote_replies_is_forgotten_when_it_is_closed(rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    with carrier.opened() as connection:
        outcomes = publisher.write_replies(connection, [('nobody-listens-here', b'{}')])
        assert outcomes.missing == [0]
        below = weakref.ref(connection.raw)
    del connection
    gc.collect()
    assert below() is None
    carrier.cleanup()


def test_an_idle_connection_lives_by_its_heartbeats_and_one_that_broke_is_dropped(rabbit_url):
    conf = a_conf(f'{rabbit_url}?heartbeat_timeout_threshold=2&heartbeat_rate=4')
    carrier = client.get_transport(conf)
    with carrier.sender() as connection:
        raw = connection.raw
    # The broker ends a connection that is silent for twice the threshold.
    time.sleep(6)
    with carrier.sender() as connection:
        assert connection.raw is raw
        assert publisher.write_replies(connection, [('nobody-listens-here', b'{}')]).missing == [0]
        connection.break_connection()
    until(lambda: carrier._idle == [])
    carrier.cleanup()


def test_an_idle_connection_is_closed_in_the_end(rabbit_url):
    query = 'conn_pool_ttl=1&conn_pool_min_size=1&heartbeat_timeout_threshold=2'
    carrier = client.get_transport(a_conf(f'{rabbit_url}?{query}'))
    with carrier.sender(), carrier.sender():
        pass
    assert len(carrier._idle) == 2
    until(lambda: len(carrier._idle) == 1)
    time.sleep(1.5)
    assert len(carrier._idle) == 1
    carrier.cleanup()
