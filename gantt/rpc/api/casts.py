# SPDX-License-Identifier: Apache-2.0
"""Casts of reports decoded straight from the bytes on the wire.

Most messages of a site are the reports of its hosts.  The library would decode
each twice into dictionaries, which then become a report; here the bytes become
a report at once.  Only what is right in every respect goes this way: anything
else is left to the library and to the checks of ``server``, which report the
error.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.base import Name
from gantt.core.messages.report import HostReport
from gantt.rpc import wire
from gantt.rpc.amqp import envelope

METHOD = 'update_resource_stats'


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    stats: msgspec.Raw


class _Cast(msgspec.Struct):
    """Message as the library writes it; a call has a message id and a queue for its answer."""

    method: str
    args: _Arguments
    version: str = '1.0'
    namespace: None = None
    msg_id: None = msgspec.field(name='_msg_id', default=None)
    reply_q: None = msgspec.field(name='_reply_q', default=None)
    request_id: Any = msgspec.field(name='_context_request_id', default=None)


_cast = msgspec.json.Decoder(_Cast).decode
_report = msgspec.json.Decoder(HostReport).decode
_anything = msgspec.json.Decoder().decode


class RpcCast(Mapping[str, Any]):
    """A report that was cast, and its body as it was sent, which only a signature check reads."""

    def __init__(self, report: HostReport, raw: msgspec.Raw) -> None:
        self.report = report
        self._raw = raw
        self._body: dict[str, Any] | None = None

    def _sent(self) -> dict[str, Any]:
        if self._body is None:
            self._body = _anything(self._raw)
        return self._body

    def __getitem__(self, key: str) -> Any:
        return self._sent()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sent())

    def __len__(self) -> int:
        return len(self._sent())


def report(body: bytes | str) -> RpcCast | None:
    """Return the report that a body casts, None where it is anything else or not quite right."""
    try:
        cast = _cast(envelope.opened(body))
        host_report = _report(cast.args.stats)
    except (*envelope.UNREADABLE, exceptions.InvalidMessage):
        return None
    if cast.method != METHOD or cast.version != wire.VERSION or host_report.name != cast.args.name:
        return None
    return RpcCast(host_report, cast.args.stats)
