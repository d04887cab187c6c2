"""Running a plan on Slurm: submitted, inside an allocation, or as a rank of a step."""
