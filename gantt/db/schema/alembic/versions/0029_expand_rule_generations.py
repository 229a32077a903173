# SPDX-License-Identifier: Apache-2.0
"""The generation of a group's rule, as zones tell it those below

Expands: a column that older processes leave alone, and null.

Revision: 0029_expand_rule_generations
"""

import sqlalchemy as sa
from alembic import op

revision = '0029_expand_rule_generations'
down_revision = '0028_expand_owners_of_zones'
branch_labels = None
depends_on = None

def upgrade():
    op.add_column('group_rules', sa.Column('rule_generation', sa.BigInteger()))
