"""Running a plan on this machine: ranks as its processes, in the emulated cluster or plain."""
