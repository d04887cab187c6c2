"""The store that the ranks of a run meet at: bound to one address, open to those alone who know the run's secret."""
