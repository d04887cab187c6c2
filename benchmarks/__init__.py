"""Comparisons that run two things side by side; `make bench` runs them all."""
