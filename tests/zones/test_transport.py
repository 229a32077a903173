# SPDX-License-Identifier: Apache-2.0
"""Between machines zones speak TLS: who answers is known by its authority or its certificate, and
who asks by what it shows.
"""

import contextlib
import hashlib
import shutil
import socketserver
import ssl
import subprocess
import threading
import uuid
import wsgiref.simple_server

import pytest

from gantt import exceptions
from gantt.zones.client.credentials import ZoneCredentials
from gantt.zones.client.http_calls import HttpZones
from gantt.zones.model.messages import ZoneRecord
from tests.zones.test_registering import field_of

OWN_UUID = 'a6d2c5a0-0000-4000-8000-000000000001'


def openssl(*words):
    done = subprocess.run(['openssl', *map(str, words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope='module')
def office(tmp_path_factory):
    """A folder with an authority, and who it has signed; and a ``stranger`` of its own."""
    if shutil.which('openssl') is None:
        pytest.skip('CERTIFICATES: openssl is not installed here')
    at = tmp_path_factory.mktemp('office')
    new = ('req', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes')
    for name in ('authority', 'stranger'):
        files = ('-keyout', at / f'{name}.key', '-out', at / f'{name}.pem')
        openssl(*new, '-x509', '-days', '2', '-subj', f'/CN={name}', *files)
    (at / 'names').write_text('subjectAltName=IP:127.0.0.1,DNS:localhost\n')
    for name in ('east', 'region'):
        request = at / f'{name}.csr'
        openssl(*new, '-subj', f'/CN={name}', '-keyout', at / f'{name}.key', '-out', request)
        signed = ('-CA', at / 'authority.pem', '-CAkey', at / 'authority.key', '-CAcreateserial')
        out = ('-extfile', at / 'names', '-days', '2', '-out', at / f'{name}.pem')
        openssl('x509', '-req', '-in', request, *signed, *out)
    return at


def digest(path):
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(path.read_text())).hexdigest()


class Handler(wsgiref.simple_server.WSGIRequestHandler):
    def get_environ(self):
        # As gunicorn does: the connection itself, and from where it comes.
        return {**super().get_environ(), 'gunicorn.socket': self.connection, **self.server.more}

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a handshake that failed


@contextlib.contextmanager
def served(app, office, **more):
    """A zone's API over TLS, which wants a certificate of its callers; its address."""
    server = wsgiref.simple_server.make_server('127.0.0.1', 0, app, Server, Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=office / 'authority.pem')
    context.load_cert_chain(office / 'east.pem', office / 'east.key')
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.more = more
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f'https://127.0.0.1:{server.server_port}'
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def way(tmp_path, zone, office):
    """``way(**section)``: ask a zone over TLS by a credential of such a section."""
    east = zone('east')
    registration = {'identity': OWN_UUID, 'project_id': 'of-region'}
    file = tmp_path / 'credentials.ini'
    with contextlib.ExitStack() as closing:
        # Seen from the zone it comes from another machine.
        url = closing.enter_context(served(east.app, office, REMOTE_ADDR='192.0.2.7'))
        calls = HttpZones(ZoneCredentials(str(file), lambda: OWN_UUID))
        closing.callback(calls.close)
        record = ZoneRecord(uuid=east.uuid, name='east', url=url, credential='east')

        def ask(**section):
            lines = (f'{name} = {value}' for name, value in section.items())
            file.write_text('\n'.join(['[east]', *lines, '']))
            calls._pools.clear()
            return calls.discover(record, 5.0)

        pin = {'certificate_sha256': digest(office / 'region.pem')}
        assert east.put('/v1/parents/region', {**registration, **pin}).status_code == 200
        ask.east = east
        yield ask


def of(office, who='region', authority='authority'):
    return {
        'ca_file': office / f'{authority}.pem',
        'certificate': office / f'{who}.pem',
        'key': office / f'{who}.key',
    }


def test_zones_on_two_machines_know_one_another_by_their_certificates(way, office):
    pin = digest(office / 'east.pem')
    colons = ':'.join(pin[n : n + 2] for n in range(0, 64, 2)).upper()
    for server_sha256 in (pin, colons):
        assert way(**of(office), server_sha256=server_sha256).uuid == way.east.uuid


def test_who_answers_is_believed_only_as_it_is_configured(way, office):
    with pytest.raises(exceptions.Unavailable, match='(?i)certificate'):
        way(**of(office, authority='stranger'))
    with pytest.raises(exceptions.Unavailable, match='server_sha256'):
        way(**of(office), server_sha256='00' * 32)


def test_who_asks_has_to_show_the_certificate_that_it_is_registered_with(way, office):
    with pytest.raises(exceptions.Unavailable):  # of another authority
        way(**of(office, who='stranger'))
    with pytest.raises(exceptions.Refused, match='403 .*certificate'):
        way(**of(office, who='east'))  # a good one of somebody else
    changed = {'certificate_sha256': digest(office / 'east.pem')}
    assert way.east.put('/v1/parents/region', changed).status_code == 200
    assert way(**of(office, who='east')).uuid == way.east.uuid
    assert field_of(way.east.put('/v1/parents/region', {'certificate_sha256': 'x'})).endswith(
        'certificate_sha256'
    )


@pytest.mark.parametrize(
    ('section', 'problem'),
    [
        ({'ca_file': 'absent.pem', 'certificate': 'c', 'key': 'k'}, 'absent.pem'),
        ({'certificate': 'c'}, 'has no key'),
        ({'verify': 'no'}, 'verify is not known'),
        ({'ca_file': 'c'}, 'has no auth_url'),
        (
            {
                'auth_url': 'http://identity.example.org/v3',
                'application_credential_id': 'a',
                'application_credential_secret': 's3cret',
            },
            'auth_url is http://identity.example.org/v3',
        ),
    ],
)
def test_a_section_that_cannot_be_used_is_named(way, section, problem):
    with pytest.raises(exceptions.Misconfigured, match=problem) as caught:
        way(**section)
    assert "section 'east'" in caught.value.message and 's3cret' not in caught.value.message


def test_nothing_is_sent_in_clear_to_another_machine(zone, tmp_path):
    top = zone('top')
    for url in ('http://cloud.example.org:8790', 'http://192.0.2.1'):
        refused = top.put('/v1/zones/cloud', {'url': url})
        assert field_of(refused) == 'body.url' and 'https://' in refused.text
        calls = HttpZones(ZoneCredentials(str(tmp_path / 'none'), lambda: OWN_UUID))
        record = ZoneRecord(uuid=str(uuid.uuid4()), name='cloud', url=url, credential='cloud')
        with contextlib.closing(calls), pytest.raises(exceptions.Misconfigured, match='zone cloud'):
            calls.discover(record, 1.0)
