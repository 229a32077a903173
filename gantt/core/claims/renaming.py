# SPDX-License-Identifier: Apache-2.0
"""A host gets another name: what its row is then."""

import msgspec

from gantt.core.resources.host import HostRow, topic_of


def renamed(row: HostRow, name: str, last_epoch: int) -> HostRow:
    """The row under another name; its id, uuid, facts and use stay.

    What followed from the old name follows from the new one.  The epoch is
    another one than anybody was ever told, so that whoever speaks next has to
    register first, by the new name.

    :param last_epoch: the last that was handed out to the new name before
    """
    return msgspec.structs.replace(
        row,
        name=name,
        node=name if row.node == row.name else row.node,
        build_topic=topic_of(name),
        epoch=max(row.epoch, last_epoch) + 1,
        sequence=0,
        full_sequence=0,
        boot_nonce='',
        generation=row.generation + 1,
    )
