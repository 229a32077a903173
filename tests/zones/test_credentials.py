# SPDX-License-Identifier: Apache-2.0
"""A zone is let in below by an application credential of the identity service there."""

import configparser
import contextlib

import pytest

from gantt import exceptions
from gantt.cmd import policies
from gantt.cmd.http_app import make_app
from gantt.http import auth
from gantt.http.server import HttpServer
from gantt.zones.client.credentials import ZoneCredentials
from gantt.zones.client.http_calls import HttpZones
from gantt.zones.model.messages import ZoneRecord
from tests.http import identity
from tests.http.identity import Credential, Keystone

OWN_UUID = 'a6d2c5a0-0000-4000-8000-000000000001'


class Below:
    """A zone whose API looks at tokens, and what is known of it above.

    :param folder: where its configuration and the file of credentials are
    """

    def __init__(self, folder, zone):
        self.file = folder / 'credentials.ini'
        self.keystone = Keystone()
        self.keystone.credentials['app-1'] = Credential('s1', 'region', 'zone-region', 'service')
        self.zone = zone('east').hosts(2)
        # Every token is looked at anew, as one that is revoked is after the time of the cache.
        options = identity.options(self.keystone.url, token_cache_time=-1)
        conf = identity.configuration(folder, {'keystone_authtoken': options})
        self.server = HttpServer(
            make_app(
                self.zone.insights,
                self.zone.store,
                self.zone.client,
                self.zone.metrics,
                strategy=auth.strategy('keystone', conf),
                rules=policies.enforcer(conf),
                zone_context=self.zone.around,
            ),
            '127.0.0.1',
            0,
            4,
        )
        self.server.start()
        registration = {'identity': 'id-of-region', 'project_id': 'zone-region'}
        assert self.zone.put('/v1/parents/region', registration).status_code == 200
        self.calls = HttpZones(ZoneCredentials(str(self.file), lambda: OWN_UUID))
        self.record = ZoneRecord(
            uuid=self.zone.uuid,
            name='east',
            url=f'http://127.0.0.1:{self.server.port}',
            credential='east',
        )
        self.write()

    def write(self, **other):
        """The file of credentials."""
        config = configparser.ConfigParser(interpolation=None)
        config['east'] = {
            'auth_url': f'{self.keystone.url}/v3',
            'application_credential_id': 'app-1',
            'application_credential_secret': 's1',
            **other,
        }
        with self.file.open('w') as file:
            config.write(file)

    def call(self):
        return self.calls.discover(self.record, 5.0)

    def token(self):
        """Of the zone above, the one that it has."""
        tokens = self.keystone.tokens.items()
        [issued] = [name for name, token in tokens if token['user']['name'] == 'region']
        return issued

    def close(self):
        self.calls.close()
        self.server.stop(1.0)
        self.keystone.stop()


@pytest.fixture
def below(tmp_path, zone):
    with contextlib.closing(Below(tmp_path, zone)) as zone_below:
        yield zone_below


def test_a_zone_is_let_in_by_its_credential_and_logs_in_once(below):
    for _ in range(3):
        assert below.call().uuid == below.zone.uuid
    assert len(below.keystone.tokens) == 2, 'one of the parent, one of the service that checks it'


def test_a_token_that_is_revoked_is_replaced_within_the_call(below):
    below.call()
    below.keystone.revoke(below.token())
    assert below.call().uuid == below.zone.uuid


def test_a_new_secret_in_the_file_is_used_without_a_restart(below):
    below.write(application_credential_secret='of yesterday')
    with pytest.raises(exceptions.Unavailable, match="credential 'east': no token"):
        below.call()
    below.write()
    assert below.call().uuid == below.zone.uuid


def test_who_has_a_good_token_and_is_no_parent_is_refused(below):
    below.keystone.credentials['app-1'] = Credential('s1', 'mallory', 'zone-region', 'admin')
    with pytest.raises(exceptions.Refused, match=r'403 .*a parent zone that is registered'):
        below.call()


def test_a_zone_whose_identity_service_is_away_does_not_answer_and_is_back_with_it(below):
    below.call()
    below.keystone.is_away = True
    with pytest.raises(exceptions.Unavailable):
        below.call()
    below.keystone.is_away = False
    assert below.call().uuid == below.zone.uuid


def test_a_credential_that_was_deleted_costs_one_login_for_a_call(below):
    below.call()
    below.keystone.revoke(below.token())
    del below.keystone.credentials['app-1']
    with pytest.raises(exceptions.Unavailable, match="credential 'east': no token"):
        below.call()


@pytest.mark.parametrize(
    'text',
    [
        'application_credential_secret = s3cret\n',
        '[east]\nauth_url = http://127.0.0.1\ns3cret\n',
        '[east]\n[east]\napplication_credential_secret = s3cret\n',
        '[east]\nauth_url = \udcff\n',
    ],
)
def test_a_file_of_credentials_that_cannot_be_read_is_named_and_no_line_of_it(below, text):
    below.file.write_bytes(text.encode(errors='surrogateescape'))
    with pytest.raises(exceptions.Misconfigured, match=r'\[zones\] credentials_file') as caught:
        below.call()
    assert str(below.file) in caught.value.message
    assert 's3cret' not in caught.value.message
