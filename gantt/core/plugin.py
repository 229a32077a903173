# SPDX-License-Identifier: Apache-2.0
"""The base of filters and weighers: a name, declared options, declared columns."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from gantt import exceptions
from gantt.core.messages.near import nearest_names
from gantt.core.messages.request import RequestKind
from gantt.core.table.columns import COLUMNS, OBJECT_COLUMNS

#: Columns that a plugin may declare as read.
KNOWN_COLUMNS = frozenset(COLUMNS) | frozenset(OBJECT_COLUMNS)


class Option(msgspec.Struct, frozen=True):
    """An option that a plugin declares; it becomes an attribute of the plugin.

    :ivar type: bool, int, float, str, or list for a list of str
    :ivar choices: of a str, what it may be
    """

    name: str
    type: type
    default: Any
    help: str
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()


#: ``kinds`` of plugins that apply to any provider.
EVERY_KIND = frozenset(RequestKind)


class Plugin:
    """Base of filters and weighers.

    :cvar name: as configured; the class's own name where left empty
    :cvar columns: columns of the host table that it reads, checked when loading
    :cvar options: what the operator may set
    :cvar kinds: the requests that it concerns, by what they are to be placed on
    """

    name: ClassVar[str] = ''
    columns: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[Option, ...]] = ()
    kinds: ClassVar[frozenset[RequestKind]] = frozenset({RequestKind.HOST})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if 'name' not in cls.__dict__:
            cls.name = cls.__name__

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        """Set the options.

        :param values: option name -> value; defaults for those left out
        """
        values = values or {}
        names = {option.name for option in self.options}
        for name in values:
            if name not in names:
                raise exceptions.PluginError(
                    plugin=self.name,
                    option=name,
                    problem=f'has no option {name!r}; it has {", ".join(sorted(names)) or "none"}',
                    fix='Remove it',
                )
        for option in self.options:
            value = values.get(option.name, option.default)
            self._check(option, value)
            setattr(self, option.name, value)

    def _check(self, option: Option, value: Any) -> None:
        low, high = option.min, option.max
        is_valid = isinstance(value, option.type) or (
            option.type is float and isinstance(value, int)
        )
        if option.type is list:
            is_valid = is_valid and all(isinstance(item, str) for item in value)
        # NaN is neither below nor above a bound.
        is_valid = is_valid and not (isinstance(value, float) and not math.isfinite(value))
        if not is_valid or (low is not None and value < low) or (high is not None and value > high):
            bounds = ''.join(
                f', {word} {bound}'
                for word, bound in (('at least', low), ('at most', high))
                if bound is not None
            )
            finite = 'finite ' if option.type is float else ''
            self._refuse(option, f'{finite}{option.type.__name__}{bounds}', value)
        if option.choices and value not in option.choices:
            choices_text = ', '.join(choice or 'nothing' for choice in option.choices)
            self._refuse(option, f'one of {choices_text}', value)

    def _refuse(self, option: Option, expected: str, value: Any) -> None:
        raise self.refused(option.name, f'expected {expected}, got {value!r}')

    def refused(
        self, option: str, problem: str, fix: str = 'Set it accordingly'
    ) -> exceptions.PluginError:
        """Return an error that names an option and the problem of its value."""
        return exceptions.PluginError(
            plugin=self.name, option=option, problem=f'option {option}: {problem}', fix=fix
        )

    @classmethod
    def check_declarations(cls) -> None:
        """Check what the class declares of itself.

        :raises PluginError: a column that the host table does not have
        """
        for column in cls.columns:
            if column not in KNOWN_COLUMNS:
                meant = nearest_names(column, sorted(KNOWN_COLUMNS), 1)
                hint = f'did you mean {meant[0]!r}?' if meant else 'there is none like it'
                raise exceptions.PluginError(
                    plugin=cls.name or cls.__name__,
                    problem=f'reads column {column!r}, which the host table does not have; {hint}',
                    fix='Correct its columns',
                )

    def settings(self) -> dict[str, Any]:
        """Return option name -> current value."""
        return {option.name: getattr(self, option.name) for option in self.options}
