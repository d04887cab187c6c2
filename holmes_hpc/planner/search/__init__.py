"""The search: what strategies propose is simulated, changed a little, and the fastest is chosen."""
