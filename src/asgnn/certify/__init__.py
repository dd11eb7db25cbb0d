"""Certificates: how many flips of edges cannot change a prediction."""

from asgnn.certify.pagerank import PageRankCertificate, certify_pagerank, damping_of
from asgnn.certify.partition import (
    certify,
    edge_free,
    edge_parts,
    predict_without_edges,
    vote_by_neighbors,
    vote_by_parts,
)
from asgnn.certify.votes import ANY_NUMBER, Ballot, Certificate, radius_of, share_right

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
    "predict_without_edges",
    "radius_of",
    "share_right",
    "vote_by_neighbors",
    "vote_by_parts",
]
