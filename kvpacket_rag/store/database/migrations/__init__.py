"""Recorded changes of the tables, applied when a store is opened."""
