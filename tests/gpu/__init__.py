"""What only a machine with a GPU can show: `tests/gpu/check.sh`."""
