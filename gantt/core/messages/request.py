# SPDX-License-Identifier: Apache-2.0
"""Requests for placement: the messages of ``select_destinations`` and its kin.

One spec describes all members of a request; member ``i`` is for the needs of ``consumers[i]``.
RPC, HTTP, the command line and tests use these very types.
"""

import collections
import copy
import enum
import hashlib
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, NoReturn

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import Message, Name, Positive, Text, Uuid
from gantt.core.messages.keys import known_keys, nova_extra_specs, nova_hints
from gantt.core.messages.keys.known_keys import KeyKind
from gantt.core.messages.policy_set import Policy, PolicySet
from gantt.core.messages.topology_request import Affinity
from gantt.core.messages.tree_request import EMPTY_LIST, TreeRequest
from gantt.core.messages.zone_step import ZoneStep
from gantt.core.trace import TraceId, trace_of

#: Encodes equal values as the same bytes, in whatever order their keys came.
_encode = msgspec.msgpack.Encoder(order='deterministic').encode

Names = Annotated[list[Name], msgspec.Meta(max_length=base.LIST_MAX)]
#: Traits of one list: more than there are standard ones.
Traits = Annotated[list[Name], msgspec.Meta(max_length=512)]
Uuids = Annotated[list[Uuid], msgspec.Meta(max_length=base.LIST_MAX)]
Extra = Annotated[dict[Name, Text], msgspec.Meta(max_length=256)]
#: Most lists of which each has to be met by one of its names.
LISTS_MAX = 64
#: Consumers of a request with a server group: they are claimed together, in one transaction.
GROUP_CONSUMERS_MAX = 400
ListsOfNames = Annotated[list[Names], msgspec.Meta(max_length=LISTS_MAX)]
#: Most devices that are described with a request, and most kinds of them in all.
DEVICES_MAX = 32
KINDS_MAX = 32
#: Most bytes of all hints that are no fields here, names and texts.
HINTS_BYTES_MAX = 16_384
#: Most levels of child zones that a request may pass, and most offers that it comes back with.
HOPS_MAX, PLACES_MAX = 4, 20
#: Most zones whose query is reported with a place.
STEPS_MAX = 20


class Purpose(enum.StrEnum):
    """Reason of the placement of a consumer."""

    CREATE = 'create'
    RESIZE = 'resize'
    MIGRATE = 'migrate'
    LIVE_MIGRATE = 'live_migrate'
    EVACUATE = 'evacuate'
    UNSHELVE = 'unshelve'
    REBUILD = 'rebuild'  # checks the host again, claims nothing

    def __init__(self, value: str) -> None:
        #: True where the consumer may hold another claim (its source) meanwhile.
        self.is_move = value in ('resize', 'migrate', 'live_migrate', 'evacuate')


class Lifecycle(enum.StrEnum):
    """Owner of the end of a claim."""

    HOST = 'host'  # the compute's reports, and the lease until it confirms
    API = 'api'  # whoever wrote it; never expires
    PLAN = 'plan'  # a group's place: own, longer lease
    HOLD = 'hold'  # who asks for a place for a while: lease
    CALLER = 'caller'  # who asked for it confirms and releases it; a lease until then


class RequestKind(enum.StrEnum):
    """Kind of target of a request."""

    HOST = 'host'
    POOL = 'pool'  # a provider that is no host and below none: storage, addresses, licences


class GroupRef(Message, frozen=True, kw_only=True):
    """The server group that the members belong to.

    ``members`` and ``hosts`` state what the caller knows: consumers that were placed before Gantt
    knew the group.  Gantt's own claims count beside them.
    """

    uuid: Uuid
    policy: Policy | None = None  # None: the group must be known here
    max_per_host: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1  # anti-affinity only
    members: Uuids = []
    hosts: Names = []
    member: Name | None = None  # of its plan: a description, or one of it
    policies: PolicySet | None = None  # at any level, in place of a policy

    def __post_init__(self) -> None:
        if self.policies is not None and self.policy is not None:
            raise base.FieldError('policies', 'expected one of policy and policies, got both')

    @property
    def is_ruled(self) -> bool:
        """True where its rule is named."""
        return self.policy is not None or self.policies is not None

    @property
    def is_hard(self) -> bool:
        """True where a part of its rule is hard."""
        rule = self.policy or self.policies
        return rule is not None and rule.is_hard


def _take_lists(spec: Message, field: str) -> None:
    """Reduce lists of alternatives to distinct lists of distinct names.

    :raises FieldError: more names than hosts are compared with
    """
    lists: list[list[str]] = getattr(spec, field)
    if not lists:
        return
    names = sum(map(len, lists))
    if names > base.LIST_MAX:
        problem = f'expected at most {base.LIST_MAX} names in all of its lists, got {names}'
        raise base.FieldError(field, problem)
    once: dict[frozenset[str], list[str]] = {}
    for alternatives in lists:  # an empty one too: no host meets it
        once.setdefault(frozenset(alternatives), list(dict.fromkeys(alternatives)))
    msgspec.structs.force_setattr(spec, field, list(once.values()))


def _check_hints(hints: Mapping[str, Sequence[str]]) -> None:
    """Check the size of the hints.

    :raises FieldError: they are too large together; those that are fields have bounds of their own
    """
    size = sum(
        len(name.encode('utf-8', 'replace')) + sum(len(t.encode('utf-8', 'replace')) for t in texts)
        for name, texts in hints.items()
        if name not in nova_hints.CONSUMER_HINTS
    )
    if size > HINTS_BYTES_MAX:
        raise base.FieldError('hints', f'expected at most {HINTS_BYTES_MAX} bytes, got {size}')


class Destination(Message, frozen=True, kw_only=True):
    """A destination that the caller asked for; filtered like any other host."""

    host: Name | None = None
    node: Name | None = None
    cell: Uuid | None = None
    preferred_cell: Uuid | None = None  # rather there, and elsewhere as well
    aggregates: ListsOfNames = []  # AND of ORs
    forbidden_aggregates: Names = []
    hosts: Names = []  # only these; one member: the first that fits

    def __post_init__(self) -> None:
        _take_lists(self, 'aggregates')


class Flavor(Message, frozen=True, kw_only=True):
    """Properties of the flavor, for filters that use them."""

    name: Text = ''
    extra_specs: Extra = {}


def name_of(flavor: Flavor) -> str | None:
    """Return the flavor's name as a claim stores it, cut to fit; None: no name."""
    if not flavor.name:
        return None
    # Lone surrogates, and characters that no database keeps, are replaced.
    name = flavor.name[: base.NAME_MAX].encode('utf-8', 'replace').decode()
    return sys.intern(name.replace('\0', '\ufffd'))


class Image(Message, frozen=True, kw_only=True):
    """Properties of the image, for filters that use them."""

    uuid: Text | None = None
    properties: Extra = {}
    disk_format: Text = ''


class DeviceKind(Message, frozen=True, kw_only=True):
    """Required properties of a device, regardless of case; '' is anything.

    :ivar tags: required tags of its pool; null: the pool must not have the tag of that name
    """

    vendor_id: Text = ''
    product_id: Text = ''
    device_type: Text = ''
    tags: Annotated[dict[Name, Text | None], msgspec.Meta(max_length=64)] = {}


class DeviceRequest(Message, frozen=True, kw_only=True):
    """Devices that are described with the request, as those of network ports are.

    :ivar alias: name of an alias of the flavor, if any; a known alias takes precedence over
        ``any_of``
    :ivar port: whose it is, for the layout
    :ivar any_of: kinds of devices, any of which is suitable
    """

    alias: Text = ''
    port: Text = ''
    count: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    any_of: Annotated[list[DeviceKind], msgspec.Meta(min_length=1, max_length=64)]
    affinity: Affinity = Affinity.LEGACY


def _check_devices(devices: Sequence[DeviceRequest]) -> None:
    """Check the number of kinds of devices: each is compared with the pools of every host.

    :raises FieldError: too many kinds
    """
    kinds = sum(len(device.any_of) for device in devices)
    if kinds > KINDS_MAX:
        raise base.FieldError('devices', f'expected at most {KINDS_MAX} kinds in all, got {kinds}')


class Networks(Message, frozen=True, kw_only=True):
    """Networks of the guest that cells of a host may be near to.

    :ivar physical: names of physical networks
    :ivar tunneled: whether one of them is tunneled
    """

    physical: Names = []
    tunneled: bool = False


#: Class -> amount.
Amounts = Annotated[dict[Name, Positive], msgspec.Meta(max_length=64)]


class RequestSpec(Message, frozen=True, kw_only=True):
    """Needs of one member, and the hosts where it may and may not go."""

    resources: Annotated[dict[Name, Positive], msgspec.Meta(min_length=1, max_length=64)]
    kind: RequestKind = RequestKind.HOST
    max_resources: Amounts = {}  # upper ends of ranges; resources has the lower ends
    consumer_type: Name = 'INSTANCE'
    project_id: Text | None = None
    user_id: Text | None = None
    purpose: Purpose = Purpose.CREATE
    availability_zone: Name | None = None
    required_traits: Traits = []
    forbidden_traits: Traits = []
    any_traits: ListsOfNames = []  # each list: at least one of them
    member_of: ListsOfNames = []  # aggregates by uuid or name: AND of ORs
    forbidden_aggregates: Names = []
    force_hosts: Names = []  # only these; filters that say nothing of them are skipped, see ask.rst
    force_nodes: Names = []
    ignore_hosts: Names = []
    destination: Destination | None = None
    group: GroupRef | None = None
    same_host: Uuids = []
    different_host: Uuids = []
    flavor: Flavor = Flavor()
    image: Image = Image()
    volume_backed: bool = False  # it boots from a volume: the image is not copied to the host
    hints: Annotated[
        dict[Name, Annotated[list[Text], msgspec.Meta(max_length=base.LIST_MAX)]],
        msgspec.Meta(max_length=256),
    ] = {}
    move_id: Uuid | None = None
    devices: Annotated[list[DeviceRequest], msgspec.Meta(max_length=DEVICES_MAX)] = []
    networks: Networks | None = None
    tree: TreeRequest | None = None  # groups beside the resources

    def __post_init__(self) -> None:
        base.share_defaults(self)
        if self.any_traits:
            _take_lists(self, 'any_traits')
        if self.member_of:
            _take_lists(self, 'member_of')
        if self.devices:
            _check_devices(self.devices)
        if self.hints:
            _check_hints(self.hints)
            self._take_hints()
        if self.flavor.extra_specs or self.image.properties:
            for name, value in nova_extra_specs.changed_fields(self).items():
                msgspec.structs.force_setattr(self, name, value)

    @property
    def digest(self) -> str:
        """Digest of all fields, the same for equal specs however they were written."""
        return hashlib.blake2b(_encode(self), digest_size=16).hexdigest()

    def taking(self, resources: dict[str, int]) -> 'RequestSpec':
        """Return the spec with other amounts, such as a part of them, whatever its flavor has."""
        part = copy.copy(self)
        msgspec.structs.force_setattr(part, 'resources', resources)
        return part

    @property
    def may_need_topology(self) -> bool:
        """True where cells, cores, pages or devices may need a layout; cheap to compute."""
        return bool(
            self.flavor.extra_specs
            or self.image.properties
            or self.devices
            or 'PCPU' in self.resources
        )

    @property
    def classes(self) -> list[str]:
        """Resource classes that it names, those of groups and devices of a tree too."""
        of_tree = [] if self.tree is None else [name for _, name in self.tree.classes()]
        return [*self.resources, *of_tree]

    @property
    def at_most(self) -> dict[str, int]:
        """Largest amounts of a member by class; of whole devices, the requested amount."""
        amounts = {**self.resources, **self.max_resources} if self.max_resources else self.resources
        if self.tree is None:
            return amounts
        total = collections.Counter(amounts)
        for tree_group in self.tree.expanded():
            total.update(tree_group.group.resources)
        return dict(total)

    @property
    def may_bring_rules(self) -> bool:
        """True where its flavor or its caller may have rules; cheap to compute."""
        return bool(self.flavor.extra_specs or self.hints)

    @property
    def plan(self) -> str | None:
        """Planned group that a hint names, beside the group or in place of one; None: no hint."""
        return nova_hints.plan(self.hints) if nova_hints.PLAN_HINT in self.hints else None

    @property
    def is_group_of_plan(self) -> bool:
        """True where its group is known only by the hint for the plan."""
        group = self.group
        return (
            group is not None
            and group.uuid == self.plan
            and not (group.is_ruled or nova_hints.GROUP_HINT in self.hints)
        )

    def without_plan(self) -> 'RequestSpec':
        """Return the spec as it is without the hints for a plan."""
        group = self.group
        if group is not None:
            group = None if self.is_group_of_plan else msgspec.structs.replace(group, member=None)
        unused = (nova_hints.PLAN_HINT, nova_hints.MEMBER_HINT)
        hints = {name: texts for name, texts in self.hints.items() if name not in unused}
        return msgspec.structs.replace(self, group=group, hints=hints)

    def _take_hints(self) -> None:
        """Copy hints of Nova into the fields, wherever the request came from."""
        for name in nova_hints.CONSUMER_HINTS:
            if name in self.hints:
                uuids = nova_hints.consumers(name, self.hints, getattr(self, name))
                msgspec.structs.force_setattr(self, name, uuids)
        if nova_hints.GROUP_HINT in self.hints:
            uuid = nova_hints.group(self.hints, self.group.uuid if self.group else None)
            if self.group is None and uuid is not None:
                msgspec.structs.force_setattr(self, 'group', GroupRef(uuid=uuid))
        plan = self.plan
        if plan is not None and self.group is None:
            msgspec.structs.force_setattr(self, 'group', GroupRef(uuid=plan))
        if nova_hints.MEMBER_HINT in self.hints:
            member = nova_hints.member(self.hints, self.group.member if self.group else None)
            if member is not None and self.group is None:
                raise base.FieldError(
                    f'hints.{nova_hints.MEMBER_HINT}',
                    'names a member; expected its group as well, as the hint '
                    f'{nova_hints.GROUP_HINT} or {nova_hints.PLAN_HINT}',
                )
            if member is not None and self.group is not None and self.group.member is None:
                group = msgspec.structs.replace(self.group, member=member)
                msgspec.structs.force_setattr(self, 'group', group)


#: Microseconds, or any other rising number.
RuleGeneration = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class OfferedPlace(Message, frozen=True, kw_only=True):
    """Place for a request that was evaluated before: local hosts, or an offer of a child.

    :ivar hosts: names of hosts, in order; empty: it is the child's
    :ivar child: uuid of a child zone
    :ivar token: offer of the child zone, which only that zone can read
    :ivar evaluated: the id under which the child was asked
    :ivar steps: steps that led to the offer, for the decision about it
    :ivar fits: number of members that have a place there together; 0: all of them
    """

    hosts: Names = []
    child: Uuid | None = None
    token: Annotated[str, msgspec.Meta(max_length=65_536)] = ''
    evaluated: Uuid | None = None
    steps: Annotated[list[ZoneStep], msgspec.Meta(max_length=STEPS_MAX)] = []
    fits: Annotated[int, msgspec.Meta(ge=0)] = 0


#: A foreign id, such as Nova's ``req-...``: printable ASCII.
Origin = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r'^[!-~]+\Z')]


class SelectDestinations(Message, frozen=True, kw_only=True):
    """The request: place every consumer, claim its place, answer.

    :ivar request_id: chosen once per logical request by the caller; repeating
        it has the effect of one
    :ivar budget_ms: time that the caller will wait, queueing included
    :ivar lease_seconds: lease of an unconfirmed claim
    :ivar only_project: claim only for consumers of this project, consumers of others do not exist
        for it; null: of any project. ``gantt-api`` sets it for callers limited to one project
    :ivar repeat: the request was sent before, and its outcome is unknown: a refusal is
        then stored, so that the copy is not placed later
    :ivar origin: the id of what led to it, by which its caller knows it, such as that of a
        request to Nova's API: decisions are found by it, and nothing else depends on it
    :ivar trace: the id of all that it leads to in all zones, as of W3C Trace Context; null: over
        HTTP that of the header ``traceparent``, and where it goes to other zones one is made
    :ivar parent: the name of the calling parent zone, as it is registered here; ``gantt-api``
        sets it
    :ivar places: places that were offered to that zone, in the order in which they are to be tried;
        ``gantt-api`` sets it
    :ivar hops: levels of zones further down that may still be queried; 0: hosts of this zone only
    :ivar via: digests of the zones that it has come through
    :ivar rule_generation: generation of its group's rule in the parent zone: a later rule has a
        higher one; null: not known
    """

    request_id: Uuid
    spec: RequestSpec
    consumers: Annotated[list[Uuid], msgspec.Meta(min_length=1, max_length=base.LIST_MAX)]
    alternates: Annotated[int, msgspec.Meta(ge=0, le=20)] = 2
    budget_ms: Annotated[int, msgspec.Meta(ge=1, le=600_000)] = 30_000
    lease_seconds: Annotated[int, msgspec.Meta(ge=5, le=86_400)] | None = None
    lifecycle: Lifecycle = Lifecycle.HOST
    dry_run: bool = False
    only_project: Text | None = None
    repeat: bool = False
    origin: Origin | None = None
    parent: Name | None = None
    places: Annotated[list[OfferedPlace], msgspec.Meta(max_length=PLACES_MAX)] = []
    hops: Annotated[int, msgspec.Meta(ge=0, le=HOPS_MAX)] = HOPS_MAX
    via: Annotated[list[Name], msgspec.Meta(max_length=HOPS_MAX)] = []
    trace: TraceId | None = None
    rule_generation: RuleGeneration | None = None

    def traced(self, trace: str = '') -> 'SelectDestinations':
        """Return the request with a trace id: its own, else ``trace``, else a new one."""
        if self.trace:
            return self
        return msgspec.structs.replace(self, trace=trace_of(trace, self.request_id))

    def on_hosts(self, hosts: list[str]) -> 'SelectDestinations':
        """Return the request for these hosts alone: one member gets the first that fits."""
        before = self.spec.destination or Destination()
        destination = msgspec.structs.replace(before, hosts=hosts)
        spec = msgspec.structs.replace(self.spec, destination=destination)
        return msgspec.structs.replace(self, spec=spec, places=[])

    @property
    def claim_lifecycle(self) -> Lifecycle:
        """Lifecycle of its claims: no host reports what lies on pools."""
        return Lifecycle.CALLER if self.spec.kind is RequestKind.POOL else self.lifecycle

    @property
    def fingerprint(self) -> str:
        """Digest of the fields that decide the outcome: a repeat must carry the same."""
        return self.fingerprint_and_size()[0]

    def fingerprint_and_size(self) -> tuple[str, int]:
        """Return the fingerprint, and the number of its bytes: about those of the request."""
        body = _encode((self.spec, self.consumers, self.alternates, self.lifecycle))
        return hashlib.blake2b(body, digest_size=16).hexdigest(), len(body)


class GetRequest(Message, frozen=True, kw_only=True):
    """Ask for the stored answer of an earlier request."""

    request_id: Uuid


class CancelClaims(Message, frozen=True, kw_only=True):
    """Cancel a request for good: its reserved claims are released."""

    request_id: Uuid
    reason: Text = ''


class ExtendClaims(Message, frozen=True, kw_only=True):
    """Lengthen the lease of the reserved claims of a request, never their state."""

    request_id: Uuid
    seconds: Annotated[int, msgspec.Meta(ge=1, le=86_400)]


class ConfirmRequest(Message, frozen=True, kw_only=True):
    """Confirm a request without a host, whose claims then stay until they are released.

    :ivar consumers: consumers whose claims are confirmed; empty: all of the request
    """

    request_id: Uuid
    consumers: Uuids = []


class ReleaseRequest(Message, frozen=True, kw_only=True):
    """Release a request without a host: its claims end, confirmed ones too.

    :ivar consumers: consumers whose claims are released; empty: all of the request
    """

    request_id: Uuid
    consumers: Uuids = []
    reason: Text = ''


#: Classes that only hosts have.
COMPUTE_CLASSES = ('VCPU', 'PCPU', 'MEMORY_MB')
#: Fields of a spec that are about hosts alone: a request for pools must not have them.
HOST_FIELDS = (
    *('group', 'same_host', 'different_host', 'force_nodes', 'destination', 'flavor', 'image'),
    *('volume_backed', 'move_id', 'devices', 'networks', 'hints', 'tree'),
)


def _check_pools(request: SelectDestinations) -> None:
    """Check that a request for pools has no fields of hosts.

    :raises InvalidMessage: names the field
    """
    spec = request.spec
    for name in COMPUTE_CLASSES:
        if name in spec.resources:
            _refuse(
                f'spec.resources.{name}',
                "only hosts have it; expected other classes with the kind 'pool', or kind 'host'",
            )
    for name in HOST_FIELDS:
        if getattr(spec, name) != getattr(_PLAIN_SPEC, name):
            _refuse(f'spec.{name}', "is about hosts; expected none with the kind 'pool'")
    if spec.purpose is not Purpose.CREATE:
        _refuse(
            'spec.purpose', f"expected 'create' with the kind 'pool', got {spec.purpose.value!r}"
        )
    if request.lifecycle is not Lifecycle.HOST:
        _refuse('lifecycle', f"expected none with the kind 'pool', got {request.lifecycle.value!r}")


def _check_ranges(spec: RequestSpec, inside: str) -> None:
    """Check the ranges of a spec.

    :raises InvalidMessage: a range without its least, or of a class that is not claimed
    """
    if spec.purpose is Purpose.REBUILD:
        problem = "expected no ranges with the purpose 'rebuild', which claims nothing"
        raise exceptions.invalid(f'{inside}.max_resources', problem)
    if spec.tree is not None:
        problem = 'expected no ranges beside groups or devices of a tree'
        raise exceptions.invalid(f'{inside}.max_resources', problem)
    for name, amount in spec.max_resources.items():
        least = spec.resources.get(name)
        if least is None or amount < least:
            expected = 'it among the resources' if least is None else f'at least {least}'
            raise exceptions.invalid(
                f'{inside}.max_resources.{name}', f'expected {expected}, got {amount}'
            )


_PLAIN_SPEC = RequestSpec(resources={'DISK_GB': 1})


def check(request: SelectDestinations, declared: frozenset[str] = frozenset()) -> None:
    """Check the constraints of a request that its types do not express.

    :param declared: custom resource classes known at run time
    :raises InvalidMessage: names the field
    :raises UnknownResourceClass: an undeclared class
    """
    check_spec(request.spec, declared)
    if request.lifecycle is Lifecycle.API:
        _refuse(
            'lifecycle',
            "expected 'host', 'plan' or 'hold', got 'api': nobody would end the claims",
        )
    if request.lifecycle is Lifecycle.CALLER:
        _refuse(
            'lifecycle',
            "expected 'host', 'plan' or 'hold', got 'caller': it follows from the kind 'pool'",
        )
    if request.spec.kind is RequestKind.POOL:
        _check_pools(request)
    if len(set(request.consumers)) != len(request.consumers):
        _refuse('consumers', 'expected distinct uuids, got one of them twice')
    if request.spec.group is not None and len(request.consumers) > GROUP_CONSUMERS_MAX:
        _refuse(
            'consumers',
            f'expected at most {GROUP_CONSUMERS_MAX} consumers in a request with a server '
            f'group, as they are claimed together, got {len(request.consumers)}',
        )


def check_spec(
    spec: RequestSpec, declared: frozenset[str] = frozenset(), inside: str = 'request.spec'
) -> None:
    """Check the constraints of a spec that its types do not express, in any message.

    :param declared: custom resource classes known at run time
    :param inside: the path of the spec, for the refusal
    :raises InvalidMessage: names the field
    :raises UnknownResourceClass: an undeclared class
    """
    _check_classes(spec, declared, inside)
    _check_keys(spec, inside)
    if spec.max_resources:
        _check_ranges(spec, inside)
    for field in ('any_traits', 'member_of'):
        if [] in getattr(spec, field):
            at = getattr(spec, field).index([])
            raise exceptions.invalid(f'{inside}.{field}[{at}]', EMPTY_LIST)
    both = set(spec.required_traits) & set(spec.forbidden_traits)
    if both:
        raise exceptions.invalid(
            f'{inside}.forbidden_traits',
            f'{min(both)} is required as well; expected it in one of the two lists only',
        )


def _check_keys(spec: RequestSpec, inside: str) -> None:
    """Check that every key is supported.

    :raises InvalidMessage: a key that no interface takes
    """
    if spec.purpose is Purpose.REBUILD:
        return  # the guest is there, with all that it was given
    for of, path, keys in (
        (KeyKind.FLAVOR, 'flavor.extra_specs', spec.flavor.extra_specs),
        (KeyKind.IMAGE, 'image.properties', spec.image.properties),
        (KeyKind.HINT, 'hints', spec.hints),
    ):
        refused_key = known_keys.refused_key(of, keys) if keys else None
        if refused_key is not None:
            raise exceptions.invalid(f'{inside}.{path}.{refused_key.name}', refused_key.says)


def _check_classes(spec: RequestSpec, declared: frozenset[str], inside: str) -> None:
    named = [(f'resources.{name}', name) for name in spec.resources]
    if spec.tree is not None:
        named += ((f'tree.{path}', name) for path, name in spec.tree.classes())
        whole = {device.resource_class for device in spec.tree.devices if device.whole}
        for name in sorted(whole & spec.resources.keys()):
            problem = 'devices are to have all of it; expected it there only'
            raise exceptions.invalid(f'{inside}.resources.{name}', problem)
    for path, name in named:
        if name not in resources.STANDARD_CLASSES and name not in declared:
            raise exceptions.UnknownResourceClass(field=f'{inside}.{path}', name=name)


def _refuse(field: str, problem: str) -> NoReturn:
    raise exceptions.invalid(f'request.{field}', problem)
