"""Certificates: how many flips of edges cannot change a prediction."""

from asgnn.certify.pagerank import PageRankCertificate, certify_pagerank, damping_of
from asgnn.certify.partition import certify, edge_free, edge_parts, vote_by_neighbors, vote_by_parts
from asgnn.certify.votes import ANY_NUMBER, Ballot, Certificate, radius_of

__all__ = [
    "ANY_NUMBER",
    "Ballot",
    "Certificate",
    "PageRankCertificate",
    "certify",
    "certify_pagerank",
    "damping_of",
    "edge_free",
    "edge_parts",
    "radius_of",
    "vote_by_neighbors",
    "vote_by_parts",
]
