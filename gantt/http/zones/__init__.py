# SPDX-License-Identifier: Apache-2.0
"""What zones above ask of this one: who may, what is sealed for them, and the answers."""
