# SPDX-License-Identifier: Apache-2.0
"""Messages of an unmodified Nova, decoded to ours and answered in its own form."""
