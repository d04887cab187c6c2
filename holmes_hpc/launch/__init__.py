"""Starts ranks, or is one."""
