# SPDX-License-Identifier: Apache-2.0
"""The dashboard: three files without any data, which the page requests from the interface.

Everything is served from here and nothing may be requested elsewhere: the policy
that goes with the page lets a browser run no script and show no style but these.
"""

import functools
import hashlib
import importlib.resources
from typing import Any

import falcon

from gantt import exceptions
from gantt.http.context import Caller, HandlerContext
from gantt.http.dispatch import RawAnswer

DASHBOARD_PATH = '/dashboard'
PAGE_FILE = 'dashboard.html'
_ROOT_CONTENT_TYPES = ('text/html', 'application/json')
#: File -> its content type.
CONTENT_TYPES = {
    PAGE_FILE: 'text/html; charset=utf-8',
    'dashboard.css': 'text/css; charset=utf-8',
    'dashboard.js': 'text/javascript; charset=utf-8',
}
CONTENT_SECURITY_POLICY = '; '.join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        'img-src data:',
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)


def show_dashboard(context: HandlerContext, caller: Caller) -> Any:
    """Show the dashboard page.

    It has no data in it; a browser that opens it asks this interface for that.
    """
    return _file(PAGE_FILE)


def show_dashboard_file(context: HandlerContext, caller: Caller, file: str) -> Any:
    """Show the style or the script of the dashboard page."""
    if file not in CONTENT_TYPES or file == PAGE_FILE:
        raise exceptions.NotFound(kind='path', name=f'{DASHBOARD_PATH}/{file}')
    return _file(file)


@functools.cache
def _file(name: str) -> RawAnswer:
    folder = importlib.resources.files('gantt.http').joinpath('page')
    body = folder.joinpath(name).read_bytes()
    headers = (
        ('ETag', f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'),
        ('Cache-Control', 'no-cache'),  # cached, but revalidated each time
        ('Content-Security-Policy', CONTENT_SECURITY_POLICY),
        ('Referrer-Policy', 'no-referrer'),
        ('X-Content-Type-Options', 'nosniff'),
    )
    return RawAnswer(body, CONTENT_TYPES[name], headers=headers)


class DashboardRedirect:
    """A falcon middleware that redirects to the dashboard's one address: its links are relative."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Redirect browsers at the root, and requests with a trailing slash, to the page."""
        if req.method in ('GET', 'HEAD') and req.env.get('PATH_INFO') in ('', '/'):
            resp.append_header('Vary', 'Accept')
            # Programs accept JSON or anything; browsers name HTML.
            if 'text/html' in req.accept and req.client_prefers(_ROOT_CONTENT_TYPES) == 'text/html':
                raise falcon.HTTPFound(f'{req.prefix}{DASHBOARD_PATH}')
        if req.env.get('PATH_INFO') == f'{DASHBOARD_PATH}/':
            raise falcon.HTTPPermanentRedirect('../dashboard')
