# SPDX-License-Identifier: Apache-2.0
"""ImagePropertiesFilter: the hypervisor runs images of that architecture, type, mode, version."""

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from gantt.core.filters.base import EVERY_PURPOSE, Filter, names_of, only
from gantt.core.messages import extra_specs
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.rules.nova_facts import step_into, text_of
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Spellings of one thing, by position in [architecture, hypervisor type, vm mode].
ALIASES: 'tuple[Mapping[str, str], ...]' = (
    {
        'i386': 'i686',
        'i486': 'i686',
        'i586': 'i686',
        'x86_32': 'i686',
        'x86_32p': 'i686',
        'amd64': 'x86_64',
    },
    {'xapi': 'xen'},
    {'pv': 'xen', 'hv': 'hvm', 'baremetal': 'hvm'},
)
PROPERTIES = ('hw_architecture', 'img_hv_type', 'hw_vm_mode')
PROPERTY_TEXTS = ('architecture', 'hypervisor type', 'vm mode')
ARCHITECTURES = frozenset(
    {
        'alpha',
        'armv6',
        'armv7l',
        'armv7b',
        'aarch64',
        'cris',
        'i686',
        'ia64',
        'lm32',
        'm68k',
        'microblaze',
        'microblazeel',
        'mips',
        'mipsel',
        'mips64',
        'mips64el',
        'openrisc',
        'parisc',
        'parisc64',
        'ppc',
        'ppcle',
        'ppc64',
        'ppc64le',
        'ppcemb',
        's390',
        's390x',
        'sh4',
        'sh4eb',
        'sparc',
        'sparc64',
        'unicore32',
        'x86_64',
        'xtensa',
        'xtensaeb',
    }
)

_VERSION_PREDICATE = re.compile(r'\s*(<=|>=|<|>|!=|==)\s*(\S+)\s*')
#: A version as Python's packages have it, which is what Nova reads.
_VERSION = re.compile(
    r'v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)'
    r'(?P<pre>[-_.]?(?:alpha|beta|preview|pre|rc|a|b|c)[-_.]?\d*)?'
    r'(?P<post>-\d+|[-_.]?(?:post|rev|r)[-_.]?\d*)?'
    r'(?P<dev>[-_.]?dev[-_.]?\d*)?'
    r'(?P<local>\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?',
    re.ASCII | re.IGNORECASE,
)
_COMPARISON_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    '<': operator.lt,
    '<=': operator.le,
    '==': operator.eq,
    '>': operator.gt,
    '>=': operator.ge,
    '!=': operator.ne,
}
#: Most characters of a required version that are read; Nova reads more.
REQUIRED_VERSION_MAX = 255

#: Epoch and release; then -1 for a version before the release itself, 1 for one after it.
Version = tuple[int, tuple[int, ...], int]
Conditions = list[tuple[str, Version]]


class ImageRequirements(msgspec.Struct, frozen=True):
    """Requirements of an image on its hypervisor.

    :ivar triple: architecture, type and mode; '' where none is asked
    :ivar version: its version as the image writes it, '' where none is asked
    :ivar conditions: ``version`` as comparisons; None: it cannot be parsed
    """

    triple: tuple[str, ...]
    version: str
    conditions: Conditions | None
    bits: str

    @property
    def has_requirements(self) -> bool:
        return any(self.triple) or bool(self.version or self.bits)


class ImagePropertiesFilter(Filter):
    """One of the kinds of guests that the hypervisor says it runs is what the image asks for.

    A hypervisor that does not tell its version, or its address bits, passes.
    """

    reason = 'does not run such images'
    public_reason = 'the properties of the image'
    columns = ('platform',)
    fields = ('image',)
    purposes = EVERY_PURPOSE
    options = (
        Option(
            'image_properties_default_architecture',
            str,
            '',
            'Architecture of images that do not name one, for example x86_64; empty: any',
        ),
        Option(
            'image_properties_as_nova',
            bool,
            False,
            'Match images as Nova does: each of architecture, hypervisor type and vm mode '
            'may stand anywhere in what the host supports, and version and address bits '
            'count only if the image names one of the three',
        ),
    )
    image_properties_default_architecture: str
    image_properties_as_nova: bool

    def __init__(self, values: 'Mapping[str, Any] | None' = None) -> None:
        super().__init__(values)
        chosen = self.image_properties_default_architecture
        if chosen and canonical_name(0, chosen) not in ARCHITECTURES:
            raise self.refused(
                'image_properties_default_architecture',
                f'{chosen!r} is no architecture that is known',
                f'Use one of {", ".join(sorted(ARCHITECTURES))}',
            )

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        requirements = self.image_requirements(spec)
        if not requirements.has_requirements:
            return None
        if requirements.conditions is None:
            return only(hosts, [])
        platforms = hosts.platforms.values
        supported = (not self.problem(platform, requirements) for platform in platforms)
        return np.fromiter(supported, np.bool_, len(platforms)).take(hosts.platform)

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        requirements, parts = self.image_requirements(spec), dict[str, int]()
        codes, counts = np.unique(hosts.platform.take(rows), return_counts=True)
        for code, count in zip(codes.tolist(), counts.tolist(), strict=True):
            text = self.problem(hosts.platforms.values[code], requirements)
            parts[text] = parts.get(text, 0) + count
        return {'parts': parts}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        row = int(rows[0])
        text = self.problem(
            hosts.platforms.values[int(hosts.platform[row])], self.image_requirements(spec)
        )
        and_more = f' and {len(rows) - 1} more' if len(rows) > 1 else ''
        return f'fits on {hosts.names[row]}{and_more} with another image: {text}'

    def image_requirements(self, spec: RequestSpec) -> ImageRequirements:
        """Return the requirements of the image of a request."""
        properties = spec.image.properties
        default = (self.image_properties_default_architecture, '', '')
        wanted_values = (
            properties.get(name, d) for name, d in zip(PROPERTIES, default, strict=True)
        )
        triple = tuple(canonical_name(i, text) for i, text in enumerate(wanted_values))
        version = properties.get('img_hv_requested_version', '')
        bits = properties.get('hw_maxphysaddr_bits', '')
        if self.image_properties_as_nova and not any(triple):
            version = bits = ''
        return ImageRequirements(
            triple, version, parse_version_conditions(version), '' if bits == '0' else bits
        )

    def problem(self, host: Hypervisor, requirements: ImageRequirements) -> str:
        """Return why a hypervisor cannot run the image, '' where it can."""
        return (
            self._triple_problem(host, requirements.triple)
            or _version_problem(host.version, requirements)
            or _bits_problem(host, requirements.bits)
        )

    def _triple_problem(self, host: Hypervisor, triple: tuple[str, ...]) -> str:
        if not any(triple):
            return ''
        if not host.supported:
            return 'does not say what images it runs'
        kinds = [
            [canonical_name(i, text) for i, text in enumerate(kind[:3])] for kind in host.supported
        ]
        if any(self._matches(triple, kind) for kind in kinds):
            return ''
        wanted_values = ' '.join(
            f'{word} {text}' for word, text in zip(PROPERTY_TEXTS, triple, strict=True) if text
        )
        runs = names_of(sorted({' '.join(kind) for kind in kinds}))
        return f'does not run {wanted_values} (runs {runs})'

    def _matches(self, triple: tuple[str, ...], kind: list[str]) -> bool:
        if self.image_properties_as_nova:
            return all(not text or text in kind for text in triple)
        padded = [*kind, '', '', ''][:3]
        return all(not text or text == other for text, other in zip(triple, padded, strict=True))


def canonical_name(position: int, text: str) -> str:
    """Return a name of an architecture, a hypervisor type or a mode in its usual spelling."""
    name = text.lower()
    return ALIASES[position].get(name, name)


def parse_version_conditions(text: str) -> Conditions | None:
    """Return ``>=2.10,<4`` as comparisons; None: it cannot be parsed."""
    if len(text) > REQUIRED_VERSION_MAX:
        return None
    conditions: Conditions = []
    for part in text.split(',') if text else ():
        match = _VERSION_PREDICATE.fullmatch(part)
        version = _version(match[2]) if match else None
        if match is None or version is None:
            return None
        conditions.append((match[1], version))
    return conditions


def _version(text: str) -> Version | None:
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    release = _without_trailing_zeros(int(number) for number in match['release'].split('.'))
    side = 1 if match['post'] or match['local'] else 0
    if match['pre'] or (match['dev'] and not match['post']):
        side = -1
    return int(match['epoch'] or 0), release, side


def hypervisor_version(number: int) -> Version:
    """Return a hypervisor's version from its number, three digits per part."""
    parts: list[int] = []
    while number > 0:
        number, part = divmod(number, 1000)
        parts.insert(0, part)
    return 0, _without_trailing_zeros(parts), 0


def _without_trailing_zeros(parts: Any) -> tuple[int, ...]:
    """Return parts without zeroes at the end: 2.0 is 2."""
    trimmed = list(parts)
    while trimmed and not trimmed[-1]:
        trimmed.pop()
    return tuple(trimmed)


def _version_problem(number: int, requirements: ImageRequirements) -> str:
    if not requirements.version:
        return ''
    if requirements.conditions is None:
        return (
            f'hypervisor version {requirements.version!r} is not understood (expected at most '
            f'{REQUIRED_VERSION_MAX} characters, e.g. >=2.10,<4)'
        )
    version = hypervisor_version(number)
    if not number or all(
        _COMPARISON_OPERATORS[op](version, other) for op, other in requirements.conditions
    ):
        return ''
    return f'hypervisor version {".".join(map(str, version[1]))} is not {requirements.version}'


def _bits_problem(host: Hypervisor, text: str) -> str:
    if not text:
        return ''
    required_bits = extra_specs.number_of(text)
    if required_bits is None:
        return f'hw_maxphysaddr_bits {text!r} is not understood (expected a number)'
    bits = step_into(host.cpu_info, ['maxphysaddr', 'bits'])
    bits_of_host = extra_specs.number_of(bits) if isinstance(bits, str) else bits
    if (
        not isinstance(bits_of_host, int | float)
        or not bits_of_host
        or bits_of_host >= required_bits
    ):
        return ''
    return f'has {text_of(bits_of_host)} address bits, {text} are asked for'
