# SPDX-License-Identifier: Apache-2.0
"""The handlers, one module for each kind of resource."""
