# SPDX-License-Identifier: Apache-2.0
"""Addresses that lead elsewhere are named as what they are."""

import pytest

from gantt import exceptions


def test_an_address_where_nova_is_not_is_named(openstack, region):
    openstack.broken['/compute/v2.1/os-services'] = (404, 1)
    with pytest.raises(exceptions.Misconfigured, match=r'\[nova\].*endpoint_override.*v2\.1'):
        region.source.step()


def test_a_keystone_that_speaks_otherwise_is_named(openstack, region):
    openstack.token = lambda body: ('a-token', 'a page')
    with pytest.raises(exceptions.Misconfigured, match='auth_url'):
        region.source.step()


def test_a_keystone_that_hiccups_is_no_wrong_address(openstack, region):
    """A process that starts meanwhile does not end with "check your auth_url"."""
    openstack.host('cmp-1')
    openstack.broken['/identity'] = (503, 1)
    region.passes()
    assert region.row('cmp-1') is not None


def test_a_keystone_that_is_away_is_asked_again_with_its_address(openstack, region):
    openstack.close()
    with pytest.raises(exceptions.Unavailable, match=r'auth_url is correct.*/identity.*3 tries'):
        region.source.step()
