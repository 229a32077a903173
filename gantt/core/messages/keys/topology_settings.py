# SPDX-License-Identifier: Apache-2.0
"""Settings of a flavor and its image for the inside of a host, one by one.

A flavor's ``hw:name`` and an image's ``hw_name`` are the same setting; each setting has its rule
for which of them may have which value.  Every refusal names the key.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NoReturn

from gantt import exceptions

#: Most processors and cells of one guest: the limits of a message of a host.
VCPUS_MAX, CELLS_MAX = 4096, 256
_RANGE = re.compile(r'(\d{1,5})(?:-(\d{1,5}))?\Z', re.ASCII)
#: Texts that Nova reads as yes and as no, upper and lower case being the same.
TRUE_SPELLINGS = ('1', 't', 'true', 'on', 'y', 'yes')
FALSE_SPELLINGS = ('0', 'f', 'false', 'off', 'n', 'no')


class TopologySettings:
    """The extra specs of a flavor and the properties of its image."""

    def __init__(self, flavor: Mapping[str, str], image: Mapping[str, str]) -> None:
        self.flavor = flavor
        self.image = image

    def of_flavor(self, name: str) -> str | None:
        """Return the value of the flavor, stripped."""
        value = self.flavor.get(f'hw:{name}')
        return None if value is None else value.strip()

    def of_image(self, name: str) -> str | None:
        """Return the value of the image, stripped."""
        value = self.image.get(f'hw_{name}')
        return None if value is None else value.strip()

    def of_both(self, name: str) -> list[tuple[str, str]]:
        """Return the values of the flavor and of the image, as far as set, with their fields."""
        flavor, image = self.of_flavor(name), self.of_image(name)
        values = [(flavor, flavor_field(name)), (image, image_field(name))]
        return [(value, field) for value, field in values if value]

    def one_of(self, name: str) -> tuple[str | None, str]:
        """Return a setting that either flavor or image may have, not both, and its field."""
        flavor, image = self.of_flavor(name), self.of_image(name)
        if flavor is not None and image is not None:
            refuse(
                image_field(name), f'the flavor has hw:{name} as well; expected it in one of them'
            )
        return (image, image_field(name)) if flavor is None else (flavor, flavor_field(name))

    def same(self, name: str, choices: Iterable[str]) -> str | None:
        """Return a setting that flavor and image may both have, the same; one of ``choices``."""
        flavor, image = self.choices_of_both(name, choices)
        if flavor and image and flavor != image:
            refuse(image_field(name), f'expected {flavor} as in the flavor, got {image}')
        return flavor or image

    def choices_of_both(self, name: str, choices: Iterable[str]) -> tuple[str | None, str | None]:
        """Return the values of the flavor and of the image, one of ``choices`` each."""
        return (
            self.choice(choices, self.of_flavor(name), flavor_field(name)),
            self.choice(choices, self.of_image(name), image_field(name)),
        )

    @staticmethod
    def choice(choices: Iterable[str], value: str | None, field: str) -> str | None:
        """Return ``value``, one of ``choices``; '' is none."""
        if not value:
            return None
        texts = list(map(str, choices))
        if value not in texts:
            refuse(field, f'expected one of {", ".join(texts)}, got {value!r}')
        return value

    def number(self, name: str, most: int) -> int:
        """Return a setting of 1 to ``most`` of the flavor, or else the image; 0: neither."""
        for value, field in self.of_both(name):
            return parse_positive(value, field, most)
        return 0

    def flag(self, name: str) -> bool:
        """Return a setting that the flavor or the image may switch on."""
        return any([parse_bool(value, field) for value, field in self.of_both(name)])

    def is_on(self, name: str) -> bool:
        """Return :meth:`flag`, where values that are neither yes nor no count as no."""
        values = (self.of_flavor(name) or '', self.of_image(name) or '')
        return any(text.lower() in TRUE_SPELLINGS for text in values)

    def pmem(self) -> list[str]:
        """Return labels of persistent memory that the flavor requests, some perhaps twice."""
        parts = (self.of_flavor('pmem') or '').split(',')
        return [label for label in map(str.strip, parts) if label]


def pmem_class(label: str) -> str:
    """Return the resource class of persistent memory with this label."""
    name = re.sub('[^0-9A-Za-z]+', '_', f'PMEM_NAMESPACE_{label}')
    return f'CUSTOM_{name.upper()}'


def flavor_field(name: str) -> str:
    """Return the field of a flavor's setting."""
    return f'request.spec.flavor.extra_specs.hw:{name}'


def image_field(name: str) -> str:
    """Return the field of an image's setting."""
    return f'request.spec.image.properties.hw_{name}'


def refuse(field: str, problem: str) -> NoReturn:
    """Refuse a value of a field.

    :raises InvalidMessage: always
    """
    raise exceptions.invalid(field, problem)


def parse_positive(value: str, field: str, most: int) -> int:
    """Return a number of 1 to ``most``."""
    if not (value.isascii() and value.isdigit() and len(value) < 12 and 1 <= int(value) <= most):
        refuse(field, f'expected a number of 1 to {most}, got {value!r}')
    return int(value)


def parse_bool(value: str, field: str) -> bool:
    """Return a value as yes or no."""
    values = value.lower()
    if values not in (*TRUE_SPELLINGS, *FALSE_SPELLINGS):
        refuse(field, f'expected true or false, got {value!r}')
    return values in TRUE_SPELLINGS


def parse_cpus(text: str, field: str, vcpus: int) -> tuple[int, ...]:
    """Return processors such as ``0-3,^2``; exclusions alone start from all of them."""
    chosen: set[int] = set()
    left_out: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(','))):
        without = part.startswith('^')
        match = _RANGE.match(part[1:] if without else part)
        if match is None:
            refuse(field, f'expected processors such as 0-3,^2, got {part!r}')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= vcpus:
            refuse(field, f'expected processors of 0 to {vcpus - 1}, got {part!r}')
        (left_out if without else chosen).update(range(first, last + 1))
    if left_out and not chosen:
        chosen = set(range(vcpus))
    if not chosen - left_out:
        refuse(field, f'expected at least one of the processors 0 to {vcpus - 1}, got {text!r}')
    return tuple(sorted(chosen - left_out))


def page_size(value: str, field: str) -> str:
    """Return ``small``, ``large``, ``any``, or a size in KiB as text."""
    values = value.strip()
    if values in ('small', 'large', 'any'):
        return values
    match = re.fullmatch(r'(\d{1,9})\s*(|[KMGT]i?B|kB)', values, re.ASCII)
    if match is None or not int(match[1]):
        refuse(field, f'expected small, large, any or a size such as 2048 or 1GB, got {value!r}')
    factor = {'': 1, 'K': 1, 'M': 1 << 10, 'G': 1 << 20, 'T': 1 << 30}[match[2][:1].upper()]
    return str(int(match[1]) * factor)
