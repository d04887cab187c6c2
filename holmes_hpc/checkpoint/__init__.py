"""Checkpoints: model and optimizer state by global parameter name and rectangle, so that any layout can load them.

`naming` and `index` need no torch, so commands can look at checkpoints without loading it; nothing is imported here.
"""
