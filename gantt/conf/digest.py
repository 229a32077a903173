# SPDX-License-Identifier: Apache-2.0
"""One short number for the configuration in force, so that two processes can be compared.

It is of what decides how requests are answered.  What may differ from machine to machine
(names, addresses, ports, paths, how many workers) is not in it, and nothing that is secret:
whoever reads the digest could try values until it matches.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from gantt.conf import claims, decisions, filters, scheduler, security

#: Group -> its options, where all processes of a site should agree.
_AGREED = {
    'scheduler': scheduler.OPTS,
    'claims': claims.OPTS,
    'decisions': decisions.OPTS,
    'security': security.OPTS,
}
#: Of one machine.
_OWN = {('scheduler', 'workers')}
#: Options of plugins are not marked as secret: these names are taken for it.
_SECRET = re.compile(r'passw|secret|token|credential|(^|_)key($|_)|url|connection', re.IGNORECASE)
_BYTES = 8


def of(conf: Any, described: Mapping[str, Any]) -> str:
    """The digest, 16 hexadecimal digits.

    :param described: of the pipeline in force: filters and weighers with their options
    """
    found: list[Any] = []
    for group, opts in _AGREED.items():
        found += [
            (group, opt.name, repr(conf[group][opt.dest]))
            for opt in sorted(opts, key=lambda opt: opt.name)
            if not opt.secret and (group, opt.name) not in _OWN
        ]
    for key in sorted(described):
        found.append((filters.FILTERS.name, key, _plain(described[key])))
    return hashlib.blake2b(repr(found).encode(), digest_size=_BYTES).hexdigest()


def _plain(value: Any) -> Any:
    """In the order of the configuration, without options that may be secret."""
    if not isinstance(value, Mapping):
        return repr(value)
    return [
        (name, _plain(inner))
        for name, inner in value.items()
        if isinstance(inner, Mapping) or not _SECRET.search(str(name))
    ]
