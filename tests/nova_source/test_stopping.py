# SPDX-License-Identifier: Apache-2.0
"""A process that is told to stop asks nothing any more, also in the middle of its tries."""

import threading

import pytest

from gantt import exceptions
from gantt.nova.source import api
from tests.nova_source.region import a_conf


def test_tries_end_when_the_process_is_to_stop(openstack):
    path = '/compute/v2.1/os-services'
    openstack.broken[path] = (503, 100)
    stopping, answer = threading.Event(), openstack.answer

    def told_meanwhile(asked, query, headers):
        if asked == path:
            stopping.set()
        return answer(asked, query, headers)

    openstack.answer = told_meanwhile
    nova, placement = api.apis(a_conf(openstack), 5.0, stopping)
    with pytest.raises(exceptions.Unavailable, match='not (asked|waited for) when stopping'):
        nova.get('/os-services', list, 'services')
    assert openstack.asked.count(('GET', path)) == 1
    with pytest.raises(exceptions.Unavailable, match='not asked when stopping'):
        placement.get('/resource_providers', list, 'resource_providers')
