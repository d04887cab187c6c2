"""Being a rank, wherever it was started: rendezvous, training, watching the others, leaving."""
