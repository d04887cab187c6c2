"""The wind tunnel's side of the seam: a rank that waits for as long as a GPU would compute."""
