"""Reading what others may have written: every file of a run, policy or configuration is opened here."""
