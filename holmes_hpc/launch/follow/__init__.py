"""Following a run from outside: progress on a console, how it failed, what interrupts it."""
