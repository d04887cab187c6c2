"""What a node has, whether it is as described, and which backend that allows."""
