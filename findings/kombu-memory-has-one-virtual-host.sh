#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# kombu 5.7.0: the transport memory:// takes a URL with a host and a virtual host, and has one set of
# exchanges and queues for the whole process.  What is published by a connection to one virtual host
# is delivered to a consumer of another one, as if both were the same broker.  Two brokers of a test,
# or the tests of one process that each take a virtual host of their own, are not apart.
# Ends with 0 where that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'kombu==5.7.0'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import kombu

received = []
first = kombu.Connection('memory://one/first')
second = kombu.Connection('memory://two/second')
queue = kombu.Queue('reports', kombu.Exchange('hosts'), 'report')(first.channel())
queue.declare()
with kombu.Consumer(first.channel(), [queue], callbacks=[lambda body, _: received.append(body)]):
    # The second virtual host has no exchange and no queue that anybody declared.
    kombu.Producer(second.channel()).publish('hello', exchange='hosts', routing_key='report')
    first.drain_events(timeout=5)
print(f'published at {second.as_uri()}, received at {first.as_uri()}: {received}')
assert received == ['hello'], 'virtual hosts are apart now'
PYTHON
