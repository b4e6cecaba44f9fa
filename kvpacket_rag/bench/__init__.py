"""Measurements on this machine. Every comparison is a ratio of two sides measured in turns in one run."""
