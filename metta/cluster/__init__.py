"""Ray: a cluster on this machine alone, or one that is joined with its token."""
