"""What notebooks and terminals show: HTML, progress bars, the console, plots.

Pure functions of plain values where possible; nothing here computes an answer. It imports `errors` and `events`.
"""
