"""Migrations of the tables. They run when a store is opened."""
