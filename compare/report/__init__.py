"""A run for people to read: markdown, HTML, figures, a CSV.

In: a run's manifest and rows. Out: files in the run's folder. Measures nothing, so a report can be remade anywhere.
"""
