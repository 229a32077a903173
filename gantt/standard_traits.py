# SPDX-License-Identifier: Apache-2.0
"""The standard traits: those of the library os-traits, which all services share."""

import os_traits

STANDARD_TRAITS = frozenset(os_traits.get_traits())
