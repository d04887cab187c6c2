"""The emulated cluster: a network namespace for every node, shaped links, ranks as forked processes."""
