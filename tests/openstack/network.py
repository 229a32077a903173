# SPDX-License-Identifier: Apache-2.0
"""What stands in for Neutron: it has no networks, no ports, and lets everything be.

Guests of the scenario have no interface, but nova-compute asks for their ports all the same.
"""

import json
import sys
from wsgiref import simple_server


class _Server(simple_server.WSGIServer):
    request_queue_size = 128


def answer(environ, start_response):
    """``{"ports": []}`` for ``/v2.0/ports``, and so for any other list."""
    name = environ['PATH_INFO'].rstrip('/').rsplit('/', 1)[-1].removesuffix('.json')
    body = json.dumps({name.replace('-', '_'): []}).encode()
    start_response(
        '200 OK',
        [
            ('Content-Type', 'application/json'),
            ('Content-Length', str(len(body))),
        ],
    )
    return [body]


if __name__ == '__main__':
    with simple_server.make_server('127.0.0.1', int(sys.argv[1]), answer, _Server) as server:
        server.serve_forever()
