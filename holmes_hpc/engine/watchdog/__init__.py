"""The watchdog: signs of life of every rank, and who is to blame when they end."""
