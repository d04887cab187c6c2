"""The typed schema of every Hydra group, the checks on it, and composing."""
