"""Graphs: what a graph is here, where it comes from, and what may be wrong with it."""
