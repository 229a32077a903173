# SPDX-License-Identifier: Apache-2.0
"""Decoding of Nova's ``select_destinations`` from its bytes, with a cache of translations.

Nova sends a RequestSpec of some thirty parts, of which flavor and image are the longest, and for
the next guest of the same kind the same bytes again.  So the parts are kept undecoded, and all
parts together are the key of the cached translation.  Only a request that is right in every
respect and has nothing about single instances goes this way: the rest is left to the general
way, which reports errors.
"""

import operator
import sys
from typing import Any, Literal, NamedTuple

import cachetools
import msgspec

from gantt.core.messages.base import Text, Uuid
from gantt.core.messages.request import RequestSpec
from gantt.nova.wire.objects import Topology

#: Bytes that translations and the parts that they belong to may take together.
BYTES_MAX = 4 << 20
#: Parts that are longer are translated each time.
SPEC_BYTES_MAX = 32 << 10

_NULL = msgspec.Raw(b'null')


class SpecParts(msgspec.Struct, kw_only=True):
    """Fields of a RequestSpec that a translation reads, as they were sent.

    A translation reads no other fields, but for the owner: nothing is read that is not compared.
    """

    flavor: msgspec.Raw = _NULL
    image: msgspec.Raw = _NULL
    availability_zone: msgspec.Raw = _NULL
    is_bfv: msgspec.Raw = _NULL
    scheduler_hints: msgspec.Raw = _NULL
    requested_destination: msgspec.Raw = _NULL
    requested_resources: msgspec.Raw = _NULL
    request_level_params: msgspec.Raw = _NULL
    ignore_hosts: msgspec.Raw = _NULL
    force_hosts: msgspec.Raw = _NULL
    force_nodes: msgspec.Raw = _NULL
    retry: msgspec.Raw = _NULL
    pci_requests: msgspec.Raw = _NULL
    network_metadata: msgspec.Raw = _NULL

    def parts(self) -> tuple[bytes, ...]:
        """Return all fields, to compare."""
        return tuple(map(bytes, _field_values(self)))

    def fields(self) -> dict[str, Any]:
        """Return all fields, decoded.

        :raises msgspec.DecodeError: a number in one of the fields is too large
        """
        return dict(zip(SPEC_FIELDS, map(_decode_any, _field_values(self)), strict=True))


SPEC_FIELDS = SpecParts.__struct_fields__
_field_values = operator.attrgetter(*SPEC_FIELDS)


class _Data(SpecParts):
    """Fields with the owner, with single instances, or with the form of the answer as well."""

    project_id: Text | None = None
    user_id: Text | None = None
    instance_group: None = None
    numa_topology: msgspec.Raw = _NULL


class _Object(msgspec.Struct):
    data: _Data = msgspec.field(name='nova_object.data')
    name: Literal['RequestSpec'] = msgspec.field(name='nova_object.name')


class _NovaArguments(msgspec.Struct):
    spec_obj: _Object
    instance_uuids: list[Uuid]
    return_alternates: bool | None = None
    return_objects: bool | None = None


_arguments = msgspec.json.Decoder(_NovaArguments).decode
_decode_any = msgspec.json.Decoder().decode


class CommonCall(NamedTuple):
    """Arguments of a call of a usual form."""

    data: SpecParts
    owner: dict[str, str | None]
    consumers: list[str]
    alternates: bool
    as_objects: bool
    topology: Topology | None


def decode_common_call(raw: msgspec.Raw | None) -> CommonCall | None:
    """Return the arguments of a call; None: they are not of the usual form.

    :param raw: the arguments as they were sent
    """
    if raw is None:
        return None
    try:
        call_arguments = _arguments(raw)
        if not call_arguments.instance_uuids:
            return None
        data = call_arguments.spec_obj.data
        topology = None
        if bytes(data.numa_topology) != b'null':
            topology = Topology(_decode_any(data.network_metadata))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return CommonCall(
        data,
        {'project_id': data.project_id, 'user_id': data.user_id},
        call_arguments.instance_uuids,
        bool(call_arguments.return_alternates),
        bool(call_arguments.return_objects),
        topology,
    )


class Translations(cachetools.LRUCache[tuple[bytes, ...], tuple[RequestSpec, int]]):
    """A cache of translations, each with its bytes; for one thread."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        super().__init__(bytes_max, getsizeof=operator.itemgetter(1))

    def put(self, key: tuple[bytes, ...], spec: RequestSpec) -> None:
        """Store a translation; the least recently used ones make room."""
        size = sum(map(sys.getsizeof, key))
        if size <= SPEC_BYTES_MAX:
            self[key] = spec, size + sys.getsizeof(key) + size_of(spec)


def size_of(value: Any) -> int:
    """Return the size in bytes of a value with all values in it, repeated ones included."""
    kind = type(value)
    if value is None or kind is bool:
        return 0
    size = sys.getsizeof(value)
    if kind is str or kind is int:
        return size
    if kind is dict:
        for name, item in value.items():
            size += size_of(name) + size_of(item)
    elif kind is list:
        for item in value:
            size += size_of(item)
    elif isinstance(value, msgspec.Struct):
        for item in msgspec.structs.astuple(value):
            size += size_of(item)
    return size
