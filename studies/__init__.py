"""The paper's tables and figures, and our own studies, run from a checkout."""
