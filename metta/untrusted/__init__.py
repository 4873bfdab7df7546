"""Reading untrusted files: every file of a run, policy or configuration is opened here."""
