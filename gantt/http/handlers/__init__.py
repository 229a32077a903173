# SPDX-License-Identifier: Apache-2.0
"""The handlers, one module per thing that is handled."""
