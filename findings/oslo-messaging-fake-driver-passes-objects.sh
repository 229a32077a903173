#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# oslo.messaging 18.3.1: the driver fake:// that is meant for tests checks that a message can be
# serialized, and delivers the objects themselves.  Whole numbers as keys stay numbers, tuples stay
# tuples, and what the server changes in an argument has changed at the caller, too.  Over a driver
# that serializes, here that of RabbitMQ on kombu's transport within the process, keys are texts,
# tuples are lists and the server has a copy.  A test over fake:// passes where the same call over
# a broker does not.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'oslo.messaging==18.3.1' 'kombu==5.7.0'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging

import oslo_messaging as om
from oslo_config import cfg

logging.disable(logging.CRITICAL)
cfg.CONF([])


class Endpoint:
    target = om.Target(version='1.0')

    def types_of(self, _context, value):
        [(key, item)] = value.items()
        return [type(key).__name__, type(item).__name__]

    def mark(self, _context, value):
        value['marked'] = True


def seen_over(url):
    transport = om.get_rpc_transport(cfg.CONF, url=url)
    server = om.get_rpc_server(
        transport, om.Target(topic='topic', server='one'), [Endpoint()], executor='threading'
    )
    server.start()
    client = om.get_rpc_client(transport, om.Target(topic='topic'), timeout=30)
    mine = {}
    client.call({}, 'mark', value=mine)
    types = client.call({}, 'types_of', value={1: (2, 3)})
    server.stop()
    return list(types), mine


for url, expected in (
    ('fake://', (['int', 'tuple'], {'marked': True})),
    ('kombu+memory://', (['str', 'list'], {})),
):
    seen = seen_over(url)
    print(f'{url} a key and a value arrive as {seen[0]}; the argument of the caller is {seen[1]}')
    assert seen == expected, 'this has changed'
PYTHON
