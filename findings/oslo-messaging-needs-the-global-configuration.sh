#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# oslo.messaging 18.3.1 takes the configuration as an argument of get_rpc_transport and registers the
# options of its drivers on what it gets.  Those of its tracing are registered on the global object
# cfg.CONF alone, when the module is imported, and read on each call from the configuration of the
# transport.  So a program that keeps a configuration of its own, as one with two brokers or a test
# does, can send no RPC: NoSuchOptError names a group that it never heard of.  Registering all that
# oslo_messaging.opts.list_opts returns is no help: they are not among them.  With cfg.CONF the same
# code works.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'oslo.messaging==18.3.1'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import oslo_messaging as om
from oslo_config import cfg
from oslo_messaging import opts


class Endpoint:
    target = om.Target(version='1.0')

    def add(self, _context, one, two):
        return one + two


def answer(conf, name):
    """Return the answer to a call over the driver within the process, or the error of the call."""
    conf([])
    transport = om.get_rpc_transport(conf, url='fake://')
    server = om.get_rpc_server(
        transport, om.Target(topic=name, server='one'), [Endpoint()], executor='threading'
    )
    server.start()
    try:
        return om.get_rpc_client(transport, om.Target(topic=name), timeout=10).call(
            {}, 'add', one=1, two=2
        )
    except Exception as e:
        return f'{type(e).__name__}: {e}'
    finally:
        server.stop()


own, registered = cfg.ConfigOpts(), cfg.ConfigOpts()
for group, options in opts.list_opts():
    registered.register_opts(options, group=group)
by_name = {
    'a configuration of its own': answer(own, 'own'),
    'cfg.CONF': answer(cfg.CONF, 'global'),
    'its own, with all listed options': answer(registered, 'registered'),
}
for name, seen in by_name.items():
    print(f'{name}: {seen}')
for name in ('a configuration of its own', 'its own, with all listed options'):
    assert 'oslo_messaging_tracing' in str(by_name[name]), 'this has changed'
assert by_name['cfg.CONF'] == 3
PYTHON
