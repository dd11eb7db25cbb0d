"""Certificates: how many flips of edges cannot change a prediction."""

from asgnn.certify.partition import certify, edge_free, edge_parts, vote_by_neighbors, vote_by_parts
from asgnn.certify.votes import ANY_NUMBER, Ballot, Certificate, radius_of

__all__ = [
    "ANY_NUMBER",
    "Ballot",
    "Certificate",
    "certify",
    "edge_free",
    "edge_parts",
    "radius_of",
    "vote_by_neighbors",
    "vote_by_parts",
]
