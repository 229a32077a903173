# SPDX-License-Identifier: Apache-2.0
"""Decoding of Nova's ``select_destinations`` from its bytes, with a cache of translations.

Nova sends a RequestSpec of some thirty parts, of which flavor and image are the longest, and for
the next guest of the same kind the same bytes again.  So the parts are kept undecoded, and all
parts together are the key of the cached translation.  Only a request that is right in every
respect and has nothing about single instances goes this way: the rest is left to the general
way, which reports errors.
"""

import collections
import operator
import sys
from typing import Any, Literal, NamedTuple

import msgspec

from gantt.core.messages.base import Text, Uuid
from gantt.core.messages.request import RequestSpec
from gantt.rpc.nova.objects import Topology

#: Bytes that translations and the parts that they belong to may take together.
BYTES_MAX = 4 << 20
#: Parts that are longer are translated each time.
PARTS_BYTES_MAX = 32 << 10

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
        return tuple(map(bytes, _parts(self)))

    def fields(self) -> dict[str, Any]:
        """Return all fields, decoded.

        :raises msgspec.DecodeError: a number in one is too large
        """
        return dict(zip(PARTS, map(_anything, _parts(self)), strict=True))


PARTS = SpecParts.__struct_fields__
_parts = operator.attrgetter(*PARTS)


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
_anything = msgspec.json.Decoder().decode


class UsualCall(NamedTuple):
    """Arguments of a call of a usual form."""

    data: SpecParts
    owner: dict[str, str | None]
    consumers: list[str]
    alternates: bool
    as_objects: bool
    topology: Topology | None


def usual(raw: msgspec.Raw | None) -> UsualCall | None:
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
            topology = Topology(_anything(data.network_metadata))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return UsualCall(
        data,
        {'project_id': data.project_id, 'user_id': data.user_id},
        call_arguments.instance_uuids,
        bool(call_arguments.return_alternates),
        bool(call_arguments.return_objects),
        topology,
    )


class Translations:
    """A cache of translations, the ones used last; for one thread."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._found: collections.OrderedDict[tuple[bytes, ...], tuple[RequestSpec, int]] = (
            collections.OrderedDict()
        )
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: tuple[bytes, ...]) -> RequestSpec | None:
        """Return the translation of a key; None: it is not known (any more)."""
        entry = self._found.get(key)
        if entry is None:
            return None
        self._found.move_to_end(key)
        return entry[0]

    def put(self, key: tuple[bytes, ...], spec: RequestSpec) -> None:
        """Store a translation; the least recently used ones make room."""
        size = sum(map(sys.getsizeof, key))
        if size > PARTS_BYTES_MAX:
            return
        old_entry = self._found.pop(key, None)
        size += sys.getsizeof(key) + size_of(spec)
        self._found[key] = spec, size
        self.bytes += size - (0 if old_entry is None else old_entry[1])
        while self.bytes > self._bytes_max:
            _, (_, evicted_size) = self._found.popitem(last=False)
            self.bytes -= evicted_size


def size_of(value: Any) -> int:
    """Return the bytes of a value and of all values in it, each counted at each place."""
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
