"""Output for notebooks and terminals: HTML, progress bars, the console, plots.

Functions are pure and take plain values where possible. Nothing here computes an answer. This part imports `errors` and
`events`.
"""
