# SPDX-License-Identifier: Apache-2.0
"""A description of a group that was made of a template."""

from typing import Any

import msgspec


class ImportedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a group, and what it was made of.

    :ivar description: body of a ``GroupDescription``
    :ivar addresses: name of a member of it -> addresses in the template, in order
    :ivar left_out: lines for resources that are no members
    """

    description: dict[str, Any]
    addresses: dict[str, list[str]]
    left_out: list[str] = []
