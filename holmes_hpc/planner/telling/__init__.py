"""What people read of a plan: tables, comparisons, what limits it and what would change it."""
