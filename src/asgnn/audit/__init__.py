"""The audit: which edges of a graph look false, which are missing, and graphs without the suspicious ones."""

from asgnn.audit.cleaning import CleanEdges, clean
from asgnn.audit.evidence import single_edges
from asgnn.audit.page import write_audit_page
from asgnn.audit.report import Audit, audit_graph
from asgnn.audit.scores import SCORES, edge_scores

__all__ = ["SCORES", "Audit", "CleanEdges", "audit_graph", "clean", "edge_scores", "single_edges", "write_audit_page"]
