# SPDX-License-Identifier: Apache-2.0
"""Credentials that stand in another group of the file: auth_section."""

import pytest
from oslo_config import cfg

from gantt import conf as options
from gantt import exceptions
from gantt.cmd.checks import options as site_options
from gantt.cmd.checks.site import check_apis
from gantt.nova.source import api
from tests.nova_source.openstack import PASSWORD

NONE = '\n'
FORMS = [
    pytest.param('nova', {'placement': NONE}, id='one-for-both'),
    pytest.param('nova', {'placement': 'auth_section = nova'}, id='placement-as-nova'),
    pytest.param('keystone_authtoken', {'nova': 'auth_section = keystone_authtoken'}, id='nova'),
    pytest.param(
        'keystone_authtoken',
        {
            'nova': 'auth_section = keystone_authtoken',
            'placement': 'auth_section = keystone_authtoken',
        },
        id='both',
    ),
    pytest.param(
        'shared',
        {'nova': 'auth_section = shared', 'placement': 'auth_section = shared'},
        id='any-name',
    ),
]


@pytest.fixture
def make_conf(openstack, tmp_path):
    def make(section, groups, **more):
        fields = {
            'auth_type': 'password',
            'auth_url': f'{openstack.url}/identity',
            'username': 'gantt',
            'password': PASSWORD,
            'project_name': 'service',
            'user_domain_name': 'Default',
            'project_domain_name': 'Default',
        } | more
        words = {section: [f'{key} = {value}' for key, value in fields.items() if value]}
        for name, line in groups.items():
            words.setdefault(name, []).append(line)
        path = tmp_path / 'gantt.conf'
        path.write_text(
            ''.join('\n'.join([f'[{name}]', *lines, '']) for name, lines in words.items())
        )
        conf = cfg.ConfigOpts()
        conf([], project='gantt', default_config_files=[str(path)])
        options.register_opts(conf, ('nova_source',))
        return conf

    return make


@pytest.mark.parametrize(('section', 'groups'), FORMS)
def test_both_services_are_asked_with_them(openstack, make_conf, section, groups):
    openstack.host('cmp-1')
    nova, placement = api.apis(make_conf(section, groups), 5.0)
    assert len(nova.get('/os-services', list, 'services')) == 1
    assert len(placement.get('/resource_providers', list, 'resource_providers')) == 1


@pytest.mark.parametrize(('section', 'groups'), FORMS)
def test_the_doctor_reads_them(make_conf, section, groups):
    conf = make_conf(section, groups)
    assert list(check_apis(conf)) == []
    assert site_options.has_nova_source(conf)


@pytest.mark.parametrize(('section', 'groups'), FORMS)
def test_what_is_wrong_is_named_where_it_stands(make_conf, section, groups):
    (finding,) = check_apis(make_conf(section, groups, auth_url='keystone:5000'))
    assert f'[{section}] auth_url' in str(finding)
    conf = make_conf(section, groups, auth_type='')
    with pytest.raises(exceptions.Misconfigured, match=rf'\[{section}\] auth_type.*not set'):
        api.apis(conf, 5.0)


def test_a_section_that_is_not_there_is_named(make_conf):
    conf = make_conf('elsewhere', {'nova': 'auth_section = shared'})
    (finding,) = check_apis(conf)
    assert '[shared] auth_type' in str(finding)
