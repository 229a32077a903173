# SPDX-License-Identifier: Apache-2.0
"""A small keystone: an HTTP server that issues, validates and forgets tokens as API v3 says.

It knows what auth_token and keystoneauth ask for, and nothing else.
"""

import datetime
import http.server
import json
import sys
import threading
import uuid
from typing import Any, NamedTuple

DOMAIN = {'id': 'default', 'name': 'Default'}
#: A role, and what keystone's bootstrap lets it imply.
IMPLIED = {
    'admin': ['admin', 'manager', 'member', 'reader'],
    'manager': ['manager', 'member', 'reader'],
    'member': ['member', 'reader'],
    'reader': ['reader'],
    'service': ['service'],
}
SERVICE_USER, PASSWORD = 'gantt', 'its-password'


def _time(seconds: float) -> str:
    when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
    return when.strftime('%Y-%m-%dT%H:%M:%S.%fZ')


class Credential(NamedTuple):
    """An application credential: a secret of a user for one project."""

    secret: str
    user: str
    project: str
    role: str


class Keystone:
    """The server, in a thread; ``asked`` counts validations."""

    def __init__(
        self, port: int = 0, prefix: str = '', passwords: tuple[str, ...] = (PASSWORD,)
    ) -> None:
        self._prefix = prefix
        self._passwords = passwords
        self.tokens: dict[str, dict[str, Any]] = {}
        self.credentials: dict[str, Credential] = {}
        self.asked = 0
        self.is_away = False
        keystone = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = 'HTTP/1.1'

            def do_GET(self) -> None:
                self.close_connection = keystone.is_away
                if not keystone.is_away:
                    keystone.get(self)

            def do_POST(self) -> None:
                self.close_connection = keystone.is_away
                if not keystone.is_away:
                    keystone.post(self)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler)
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_address[1]}{prefix}'
        self.catalog = [endpoints('identity', f'{self.url}/v3')]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Nobody answers from here on, nor on connections that are open."""
        self.is_away = True
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    # -- tokens -------------------------------------------------------------------------
    def issue(
        self,
        role: str,
        project: str | None = 'red',
        *,
        user: str = 'eve',
        system: bool = False,
        domain: str | None = None,
        seconds: float = 3600,
    ) -> str:
        """A token with what the role implies, on one of: project, system, domain."""
        token: dict[str, Any] = {
            'methods': ['password'],
            'user': {
                'id': f'id-of-{user}',
                'name': user,
                'domain': DOMAIN,
                'password_expires_at': None,
            },
            'audit_ids': [uuid.uuid4().hex[:22]],
            'issued_at': _time(-1),
            'expires_at': _time(seconds),
            'roles': [{'id': f'id-of-{name}', 'name': name} for name in IMPLIED[role]],
            'catalog': self.catalog,
        }
        if system:
            token['system'] = {'all': True}
        elif domain:
            token['domain'] = {'id': domain, 'name': domain}
        elif project:
            token['project'] = {'id': project, 'name': project, 'domain': DOMAIN}
            token['is_domain'] = False
        name = f'token-{uuid.uuid4().hex}'
        self.tokens[name] = token
        return name

    def revoke(self, token: str) -> None:
        """As an administrator does, or a logout."""
        del self.tokens[token]

    # -- what is asked ----------------------------------------------------------------------
    def get(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """The version, or what a token is worth."""
        path = request.path.removeprefix(self._prefix).rstrip('/')
        if path in ('', '/v3'):
            version = {
                'id': 'v3.14',
                'status': 'stable',
                'updated': '2020-04-07T00:00:00Z',
                'links': [{'rel': 'self', 'href': f'{self.url}/v3/'}],
                'media-types': [],
            }
            is_one_version = path == '/v3'
            body = {'version': version} if is_one_version else {'versions': {'values': [version]}}
            return _answer(request, 200 if is_one_version else 300, body)
        if not path.startswith('/v3/auth/tokens'):
            return _answer(request, 404, _error(404, 'Not Found'))
        self.asked += 1
        if not self._is_good(request.headers.get('X-Auth-Token', '')):
            return _answer(request, 401, _error(401, 'Unauthorized'))
        subject = request.headers.get('X-Subject-Token', '')
        if not self._is_good(subject):
            return _answer(request, 404, _error(404, 'Not Found'))
        return _answer(request, 200, {'token': self.tokens[subject]}, subject)

    def _is_good(self, token: str) -> bool:
        kept = self.tokens.get(token)
        return kept is not None and kept['expires_at'] > _time(0)

    def post(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """A token for a name and a password, or for an application credential."""
        length = int(request.headers.get('Content-Length', 0))
        auth = json.loads(request.rfile.read(length))['auth']
        if 'application_credential' in auth['identity']['methods']:
            return self._by_credential(request, auth['identity']['application_credential'])
        user = auth['identity']['password']['user']
        if user['password'] not in self._passwords:
            return _answer(request, 401, _error(401, 'Unauthorized'))
        scope = auth.get('scope', {})
        token = self.issue(
            'service' if user['name'] == SERVICE_USER else user['name'],
            scope.get('project', {}).get('name'),
            user=user['name'],
            system='system' in scope,
        )
        return _answer(request, 201, {'token': self.tokens[token]}, token)

    def _by_credential(
        self, request: http.server.BaseHTTPRequestHandler, given: dict[str, str]
    ) -> None:
        """It says whose it is and for which project, so there is no scope."""
        credential = self.credentials.get(given['id'])
        if credential is None or credential.secret != given['secret']:
            return _answer(request, 401, _error(401, 'Unauthorized'))
        token = self.issue(credential.role, credential.project, user=credential.user)
        return _answer(request, 201, {'token': self.tokens[token]}, token)


def endpoints(kind: str, url: str) -> dict[str, Any]:
    """A service as it stands in a catalog."""
    return {
        'id': f'id-of-{kind}',
        'type': kind,
        'name': kind,
        'endpoints': [
            {
                'id': f'{kind}-{interface}',
                'interface': interface,
                'region': 'RegionOne',
                'region_id': 'RegionOne',
                'url': url,
            }
            for interface in ('public', 'internal', 'admin')
        ],
    }


def _answer(
    request: http.server.BaseHTTPRequestHandler, status: int, body: Any, subject: str = ''
) -> None:
    data = json.dumps(body).encode()
    request.send_response(status)
    request.send_header('Content-Type', 'application/json')
    request.send_header('Content-Length', str(len(data)))
    if subject:
        request.send_header('X-Subject-Token', subject)
    request.end_headers()
    request.wfile.write(data)


def _error(code: int, title: str) -> dict[str, Any]:
    return {'error': {'code': code, 'title': title, 'message': 'as keystone says it'}}


def options(url: str, **changes: object) -> dict[str, object]:
    """What a site says in [keystone_authtoken]."""
    return {
        'auth_type': 'password',
        'auth_url': url,
        'username': SERVICE_USER,
        'password': PASSWORD,
        'project_name': 'service',
        'user_domain_name': 'Default',
        'project_domain_name': 'Default',
        'www_authenticate_uri': 'https://keystone.example.org/v3',
        **changes,
    }


def configuration(folder: Any, sections: dict[str, dict[str, object]]) -> Any:
    """A parsed configuration of its own, from a file."""
    file = folder / 'gantt.conf'
    file.write_text(
        ''.join(
            f'[{group}]\n'
            + ''.join(f'{name} = {value}\n' for name, value in options.items() if value is not None)
            for group, options in sections.items()
        )
    )
    from oslo_config import cfg  # all else here runs wherever Python does

    conf = cfg.ConfigOpts()
    conf(['--config-file', str(file)], project='gantt', default_config_dirs=[])
    return conf


if __name__ == '__main__':  # PORT PREFIX PASSWORD...: until it is killed
    Keystone(int(sys.argv[1]), sys.argv[2], tuple(sys.argv[3:]))
