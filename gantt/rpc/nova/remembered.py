# SPDX-License-Identifier: Apache-2.0
"""Nova's ``select_destinations`` off its bytes; what a part was translated to is remembered.

Nova sends a RequestSpec of some thirty parts, of which flavor and image are the longest, and for
the next guest of the same kind the same bytes again.  So the parts are taken as they are; what
they all together were translated to the last time is what they mean now.  Only what is right in
every respect and says nothing of single instances goes this way: the rest is left to the general
way, which says what is wrong with it.
"""

import collections
import operator
import sys
from typing import Any, Literal, NamedTuple

import msgspec

from gantt.core.messages.base import Text, Uuid
from gantt.core.messages.request import RequestSpec
from gantt.rpc.nova.objects import Topology

#: Bytes that translations and the parts that they are of may take together.
BYTES_MAX = 4 << 20
#: Parts that are longer are translated each time.
PARTS_BYTES_MAX = 32 << 10

_NULL = msgspec.Raw(b'null')


class SpecParts(msgspec.Struct, kw_only=True):
    """The fields of a RequestSpec that a translation reads, as they were sent.

    What is not here, but for its owner, is not there for it: nothing is read that is not compared.
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
        """All of them, to compare."""
        return tuple(map(bytes, _parts(self)))

    def fields(self) -> dict[str, Any]:
        """All of them, decoded.

        :raises msgspec.DecodeError: a number in one is too large
        """
        return dict(zip(PARTS, map(_anything, _parts(self)), strict=True))


PARTS = SpecParts.__struct_fields__
_parts = operator.attrgetter(*PARTS)


class _Data(SpecParts):
    """And those that say whose it is, something of single instances, or of the answer's form."""

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
    """The arguments of a call of a usual form."""

    data: SpecParts
    owner: dict[str, str | None]
    consumers: list[str]
    alternates: bool
    as_objects: bool
    topology: Topology | None


def usual(raw: msgspec.Raw | None) -> UsualCall | None:
    """The arguments of a call; None: they are not of the usual form.

    :param raw: as they were sent
    """
    if raw is None:
        return None
    try:
        found = _arguments(raw)
        if not found.instance_uuids:
            return None
        data = found.spec_obj.data
        topology = None
        if bytes(data.numa_topology) != b'null':
            topology = Topology(_anything(data.network_metadata))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return UsualCall(
        data,
        {'project_id': data.project_id, 'user_id': data.user_id},
        found.instance_uuids,
        bool(found.return_alternates),
        bool(found.return_objects),
        topology,
    )


class Translations:
    """What parts were translated to, those that were asked for last; of one thread."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._found: collections.OrderedDict[tuple[bytes, ...], tuple[RequestSpec, int]] = (
            collections.OrderedDict()
        )
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: tuple[bytes, ...]) -> RequestSpec | None:
        """What a key stands for, whoever asked; None: it is not known (any more)."""
        found = self._found.get(key)
        if found is None:
            return None
        self._found.move_to_end(key)
        return found[0]

    def put(self, key: tuple[bytes, ...], spec: RequestSpec) -> None:
        """Remember a translation; the ones that were not asked for longest make room."""
        size = sum(map(sys.getsizeof, key))
        if size > PARTS_BYTES_MAX:
            return
        before = self._found.pop(key, None)
        size += sys.getsizeof(key) + size_of(spec)
        self._found[key] = spec, size
        self.bytes += size - (0 if before is None else before[1])
        while self.bytes > self._bytes_max:
            _, (_, least) = self._found.popitem(last=False)
            self.bytes -= least


def size_of(value: Any) -> int:
    """Bytes of a value and of all that is in it, each counted where it stands."""
    kind = type(value)
    if value is None or kind is bool:
        return 0
    size = sys.getsizeof(value)
    if kind is str or kind is int:
        return size
    if kind is dict:
        for name, inner in value.items():
            size += size_of(name) + size_of(inner)
    elif kind is list:
        for inner in value:
            size += size_of(inner)
    elif isinstance(value, msgspec.Struct):
        for inner in msgspec.structs.astuple(value):
            size += size_of(inner)
    return size
