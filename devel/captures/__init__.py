# SPDX-License-Identifier: Apache-2.0
"""Captured messages of an unmodified Nova, for the demo and the benches.

Decoded captures of what nova-conductor 34 sent to its scheduler (tokens cut
out).  A capture is old; ``fresh`` gives the same message as if it were sent now.
"""

import datetime
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from gantt import exceptions


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A captured call.

    :ivar context: the request context that oslo.messaging carries
    """

    method: str
    version: str
    context: dict[str, Any]
    args: dict[str, Any]

    def fresh(
        self,
        instance_uuids: Sequence[str],
        request_id: str,
        *,
        now: datetime.datetime | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return (context, args) of the same call for other instances, sent now.

        :param request_id: Nova's request id, e.g. ``req-...``; repeating it repeats the call
        """
        sent_at = now or datetime.datetime.now(datetime.UTC)
        context = self.context | {
            'request_id': request_id,
            'timestamp': sent_at.replace(tzinfo=None).isoformat(),
        }
        spec = self.args['spec_obj']
        data = spec['nova_object.data'] | {
            'instance_uuid': instance_uuids[0],
            'num_instances': len(instance_uuids),
        }
        args = self.args | {
            'instance_uuids': list(instance_uuids),
            'spec_obj': spec | {'nova_object.data': data},
        }
        return context, args


def names() -> list[str]:
    """Return names of the captures: boot, boot-multi3, ..."""
    files = importlib.resources.files(__name__).iterdir()
    prefix, suffix = 'select_destinations-', '.json'
    return sorted(
        entry.name.removeprefix(prefix).removesuffix(suffix)
        for entry in files
        if entry.name.endswith(suffix)
    )


def load(name: str) -> Capture:
    """Return the capture ``select_destinations-NAME.json``.

    :raises NotFound: there is no capture of that name
    """
    file = importlib.resources.files(__name__) / f'select_destinations-{name}.json'
    if not file.is_file():
        raise exceptions.NotFound(kind='capture', name=name)
    return parse(json.loads(file.read_text(encoding='utf-8')))


def parse(stored: dict[str, Any]) -> Capture:
    """Return a decoded capture file as a call."""
    message = stored['oslo.message (decoded)']
    prefix = '_context_'
    return Capture(
        method=message['method'],
        version=message['version'],
        context={k.removeprefix(prefix): v for k, v in message.items() if k.startswith(prefix)},
        args=message['args'],
    )
