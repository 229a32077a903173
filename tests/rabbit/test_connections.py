# SPDX-License-Identifier: Apache-2.0
"""Connections that are made anew leave nothing behind."""

import gc
import weakref

import pytest
from oslo_messaging._drivers import common as rpc_common

from gantt import client
from gantt.rpc.amqp import publisher
from tests.rpc.bus import a_conf

pytestmark = pytest.mark.rabbit


def test_a_connection_that_wrote_replies_is_forgotten_when_it_is_closed(rabbit_url):
    carrier = client.get_transport(a_conf(rabbit_url))
    pool = carrier._driver._connection_pool
    with carrier._driver._get_connection(rpc_common.PURPOSE_SEND) as context:
        connection = context.connection
        fates = publisher.write(connection, [('nobody-listens-here', b'{}')])
        assert fates.missing == [0]
        below = weakref.ref(connection.connection)
        connection.close()
        connection.connection = None
        del connection
    for item in pool.iter_free():
        item.connection = None
    gc.collect()
    assert below() is None
    carrier.cleanup()
