# SPDX-License-Identifier: Apache-2.0
"""A site behind keystone, and somebody of every kind who asks."""

import pathlib
from typing import Any, NamedTuple

import httpx2 as httpx

from gantt.cmd import policies
from gantt.cmd.http_app import make_app
from gantt.http import auth
from gantt.http.middleware import Wsgi
from tests.http import identity
from tests.http.identity import Keystone
from tests.http.site import Site

#: Who asks: role, project, and what else the token says.
CALLERS: dict[str, tuple[str, dict[str, Any]]] = {
    'reader': ('reader', {}),
    'member': ('member', {}),
    'manager': ('manager', {}),
    'admin': ('admin', {}),
    'service': ('service', {'project': 'service', 'user': 'nova'}),
    'system reader': ('reader', {'system': True}),
    'system member': ('member', {'system': True}),
    'system admin': ('admin', {'system': True}),
    'domain admin': ('admin', {'domain': 'default'}),
    'unscoped': ('reader', {'project': None}),
}
LATEST = {'OpenStack-API-Version': 'scheduler latest'}
#: A policy file of a site whose members claim places themselves.
MEMBERS_CLAIM = """
"gantt:requests:create:claim": "rule:admin_api or rule:service_api or rule:project_member_api"
"""


class Cloud(NamedTuple):
    """A site behind keystone, and a token of everybody."""

    site: Site
    client: httpx.Client
    tokens: dict[str, str]

    def ask(self, caller: str, method: str, path: str, body: Any = None, **query: Any) -> Any:
        headers = {
            **LATEST,
            **({'X-Auth-Token': self.tokens[caller]} if self.tokens[caller] else {}),
        }
        return self.client.request(method, path, headers=headers, json=body, params=query)


def guarded(
    site: Site, keystone: Keystone, folder: pathlib.Path, rules: str = '', **options: object
) -> Wsgi:
    """The application of a site whose strategy is keystone.

    :param folder: where its configuration is written
    :param rules: of a policy file
    :param options: of [keystone_authtoken]
    """
    sections: dict[str, dict[str, Any]] = {
        'keystone_authtoken': identity.options(keystone.url, **options)
    }
    if rules:
        file = folder / 'policy.yaml'
        file.write_text(rules)
        sections['oslo_policy'] = {'policy_file': file}
    conf = identity.configuration(folder, sections)
    return make_app(
        site.insights,
        site.world.store,
        site.client,
        site.metrics,
        strategy=auth.strategy('keystone', conf),
        rules=policies.enforcer(conf),
        plans=site.plans,
    )


def a_cloud(keystone: Keystone, folder: pathlib.Path, rules: str = '') -> Cloud:
    """A site of its own.

    :param rules: of a policy file
    """
    site = Site()
    app = guarded(site, keystone, folder, rules)
    tokens = {name: keystone.issue(role, **more) for name, (role, more) in CALLERS.items()}
    tokens['other member'] = keystone.issue('member', 'blue', user='bob')
    client = httpx.Client(transport=httpx.WSGITransport(app), base_url='http://localhost')
    return Cloud(site, client, {**tokens, 'nobody': '', 'a bad token': 'token-of-nobody'})
